"""`zerotools cancel`: ask jobs to save and stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.describe import (
    checkpoint_path,
    how_it_stops,
    is_over,
    outcome,
    title,
)
from zerotools.cli.job_views.job_reference import find_job, jobs_argument
from zerotools.cli.job_views.polling import Poller
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.output.messages import called, say_error
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("cancel")
@jobs_argument
@click.option("-w", "--wait", is_flag=True, help="Wait until the jobs have ended.")
@socket_option
@json_option
def command(references: tuple[str, ...], wait: bool, socket: Path | None, as_json: bool) -> None:
    """Stop jobs. One that trains saves a checkpoint at its next step first.

    A program of your own (engine script) gets SIGTERM instead, and saves if it does so then. What
    still runs after stop.grace_seconds of the daemon's configuration, 120 unless set, is killed.

    A JOB is a number, or the name of one that is not over.

    Only the user who submitted a job, and root, may cancel it.
    """
    client = DaemonClient(socket)
    jobs: list[dict[str, Any]] = []
    errors: list[ZerotoolsError] = []
    for reference in dict.fromkeys(references):
        try:
            jobs.append(client.cancel(int(find_job(client, reference)["id"])))
        except ZerotoolsError as error:  # the other jobs are cancelled all the same
            errors.append(error)
        else:
            if not as_json:
                click.echo(_asked(jobs[-1], wait))
    if wait:
        jobs = [_until_over(client, job, as_json) for job in jobs]
    if as_json:
        render.print_json(jobs)
    sys.stdout.flush()
    for refusal in errors[:-1]:
        say_error(str(refusal))
    if errors:
        raise errors[-1]


def _asked(job: dict[str, Any], wait: bool) -> str:
    if is_over(job):
        return f"{title(job)} is cancelled; it was not running"
    hint = "" if wait else f" (see how far it is: {called()} show {job['id']})"
    return f"{title(job)} {how_it_stops(job)}{hint}"


def _until_over(client: DaemonClient, job: dict[str, Any], quiet: bool) -> dict[str, Any]:
    poller = Poller()
    asked = job
    for _ in poller.rounds():
        if is_over(job):
            break
        job = poller.ask(lambda: client.job(asked["id"]))
    if not quiet and not is_over(asked):
        path = checkpoint_path(job)
        click.echo(
            f"{title(job)} {outcome(job)}" + (f"; its newest checkpoint is {path}" if path else "")
        )
    return job
