"""`zerotools cancel`: ask jobs to save and stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerotools.cli.job_actions.job_reference import jobs_argument, jobs_client
from zerotools.cli.job_actions.send_job_requests import print_changed, request_each
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.cli.job_views.describe_job import (
    Job,
    checkpoint_path,
    how_it_stops,
    is_over,
    outcome,
    title,
)
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name
from zerotools.jobs.client.daemon_client import DaemonClient

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


@click.command("cancel")
@jobs_argument
@click.option("-w", "--wait", is_flag=True, help="Wait until the jobs have ended.")
@socket_option
@json_option
def command(references: tuple[str, ...], wait: bool, socket: Path | None, as_json: bool) -> None:
    """Stop jobs. A running job saves a checkpoint at its next step first.

    Your own program (engine script) gets SIGTERM instead, and should save then. Processes that
    still run after stop.grace_seconds of the daemon's configuration (default: 120) are killed.

    A JOB is a number, or the name of a job that has not ended. @7 and @tiny mean all jobs of an
    array.

    Only the user who submitted a job, and administrators, may cancel it.
    """
    client = jobs_client(socket, references)
    told = None if as_json else lambda job: _describe_outcome(job, wait)
    jobs, errors = request_each(client, references, client.cancel, told, {"do": "cancel"})
    if wait:
        if as_json:  # printed even if the wait is interrupted
            render.print_json({"jobs": jobs})
        jobs = [_wait_until_ended(client, job, as_json) for job in jobs]
    print_changed(jobs, errors, as_json=as_json)


def _describe_outcome(job: Job, wait: bool) -> str:
    if is_over(job):
        return f"{title(job)} is cancelled; it was not running"
    hint = "" if wait else f" (see its progress: {command_name()} show {job['id']})"
    return f"{title(job)} {how_it_stops(job)}{hint}"


def _wait_until_ended(
    client: DaemonClient | SlurmJobs, job: dict[str, Any], quiet: bool
) -> dict[str, Any]:
    poller = Poller()
    asked = job
    for _ in poller.rounds():
        if is_over(job):
            break
        job = poller.call(lambda: client.job(asked["id"]))
    if not quiet and not is_over(asked):
        path = checkpoint_path(job)
        click.echo(
            f"{title(job)} {outcome(job)}" + (f"; its newest checkpoint is {path}" if path else "")
        )
    return job
