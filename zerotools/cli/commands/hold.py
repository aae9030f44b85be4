"""`zerotools hold`: keep jobs from starting; running ones save and stop first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.job_reference import jobs_argument
from zerotools.cli.job_actions.send_job_requests import print_changed, request_each
from zerotools.cli.job_actions.wait_for_jobs import EndingWatch, Poller, waits_for_user
from zerotools.cli.job_views.describe_job import (
    Job,
    checkpoint_path,
    how_it_stops,
    is_over,
    title,
)
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name
from zerotools.core.errors import JobFailed
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import predicate


@click.command("hold")
@jobs_argument
@click.option(
    "--lose-steps",
    is_flag=True,
    help="Also hold jobs that may be unable to save and would start again from the beginning.",
)
@click.option("-w", "--wait", is_flag=True, help="Wait until the jobs have saved and are held.")
@socket_option
@json_option
def command(
    references: tuple[str, ...],
    lose_steps: bool,
    wait: bool,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Keep jobs from starting, until zerotools release; a running job saves and stops first.

    A held job keeps its number and its priority, and so its position among jobs of its priority.

    A running job saves at its next step, and then its GPUs are free. After its release it continues
    from this checkpoint. Processes that still run after stop.grace_seconds of the daemon's
    configuration (default: 120) are killed; such a job continues from its newest checkpoint.

    A running job with your own program (engine script) is held only if the program is known to
    save: script names a checkpoint_dir, or the program has reported a checkpoint.
    """
    client = DaemonClient(socket)
    ask = partial(client.hold, lose_steps=lose_steps)
    told = None if as_json else partial(_describe_outcome, wait)
    body = {"do": "hold", "lose_steps": lose_steps}
    jobs, errors = request_each(client, references, ask, told, body)
    if wait:
        if as_json:  # printed even if the wait is interrupted
            render.print_json({"jobs": jobs})
        numbers = [int(job["id"]) for job in jobs]
        ended = {int(job["id"]): job for job in EndingWatch(client, numbers, Poller()).ends(None)}
        jobs = [ended[number] for number in numbers]
        errors += [_not_held_error(job) for job in jobs if not waits_for_user(job)]
        if not as_json:
            _print_held(jobs)
    print_changed(jobs, errors, as_json=as_json)


def _describe_outcome(wait: bool, job: Job) -> str:
    go_on = f"let it start: {command_name()} release {job['id']}"
    if waits_for_user(job):
        return f"{title(job)} is held; {go_on}"
    then = "" if wait else f"; then it is held; {go_on}"
    return f"{title(job)} {how_it_stops(job)}{then}"


def _print_held(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        if waits_for_user(job):
            path = checkpoint_path(job)
            newest = f"; its newest checkpoint is {path}" if path else ""
            click.echo(f"{title(job)} is held: {render.clean(str(job['reason']))}{newest}")


def _not_held_error(job: Job) -> JobFailed:
    how = "ended before it was held" if is_over(job) else "is not held"
    return JobFailed(f"{title(job)} {how}: it {predicate(job['state'])}")
