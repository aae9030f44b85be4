"""`zerotools release`: let jobs that are on hold start."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_views.describe import Job, title
from zerotools.cli.job_views.job_reference import jobs_argument
from zerotools.cli.job_views.several import ask_each, finish
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("release")
@jobs_argument
@socket_option
@json_option
def command(references: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Release jobs from hold, so that they start when their turn comes.

    A job still waits for its start time (--begin) and for jobs that it starts after. It no longer
    waits for a job that has ended with the wrong result.
    """
    client = DaemonClient(socket)
    told = None if as_json else _told
    finish(*ask_each(client, references, client.release, told, {"do": "release"}), as_json=as_json)


def _told(job: Job) -> str:
    state = str(job["state"]).replace("_", " ")
    why = f": {render.clean(job['reason'])}" if job["reason"] else ""
    return f"{title(job)} is no longer on hold: it is {state}{why}"
