"""Jobs to run again: a finished one from its newest checkpoint, and a held one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.describe import Job, state_words, title
from zerotools.cli.job_views.job_reference import find_job
from zerotools.cli.job_views.which_jobs import jobs_client
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import SUCCEEDED


def released(job: Job) -> str:
    """Return the sentence on a released job."""
    why = f": {render.clean(job['reason'])}" if job["reason"] else ""
    return f"{title(job)} is not held any more: it is {state_words(job)}{why}"


def continue_job(
    socket: Path | None, reference: str | None, *, asked: Mapping[str, Any], as_json: bool
) -> None:
    """Queue a new job that continues from the newest checkpoint of a finished one.

    `asked` has the requested nodes of a job that Slurm has without a daemon.
    """
    client = jobs_client(socket, [reference])
    before = find_job(client, reference)
    if not isinstance(client, DaemonClient):
        job = client.resume(before["id"], **asked)
        if as_json:
            render.print_json({"jobs": [job]})
        else:
            click.echo(f"{title(job)} is {state_words(job)}; it continues in {job['output_dir']}")
        return
    refuse_nodes(asked)
    job = client.retry(int(before["id"]), from_start=False)
    if as_json:
        render.print_json({"jobs": [job]})
        return
    _say_continued(job, before)


def refuse_nodes(asked: Mapping[str, Any]) -> None:
    """Raise BadRequest if a number of nodes was given for a job of a daemon."""
    if asked:
        raise BadRequest("--nodes is only for jobs submitted to Slurm without a daemon")


def queued_again(job: Job) -> str:
    """Return how a job begins that was queued again: `resumes from the newest checkpoint`."""
    return "resumes from the newest checkpoint" if job["spec"].get("resume_from") else "begins"


def _say_continued(job: Job, before: Job) -> None:
    click.echo(f"{title(job)} is queued; it {queued_again(job)} in {job['output_dir']}")
    if before["state"] == SUCCEEDED:
        click.echo(f"note: job {before['id']} had succeeded: this is another run of its program")
