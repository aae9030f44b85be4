"""`zerotools wait`: wait until jobs have ended."""

from __future__ import annotations

import time
from pathlib import Path

import click

from zerotools.cli.job_actions.job_reference import find_all_jobs, jobs_argument, jobs_client
from zerotools.cli.job_actions.wait_for_jobs import EndingWatch, Poller, waits_for_user
from zerotools.cli.job_views.describe_job import Job, outcome, title
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest, DaemonUnreachable, JobFailed, TimedOut
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import SUCCEEDED, display_text


@click.command("wait")
@jobs_argument
@click.option("--any", "any_one", is_flag=True, help="Wait only until the first job has ended.")
@click.option(
    "--timeout", metavar="SPAN", help="Stop waiting after this time: 90 (seconds), 30m, 2h."
)
@socket_option
@json_option
def command(
    references: tuple[str, ...],
    any_one: bool,
    timeout: str | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Wait until jobs have ended, and print their results.

    The exit status is 0 if all jobs have succeeded (with --any: the first job that ended), 6 if
    not, and 124 if --timeout has passed first. A held job also ends the wait, because it needs a
    command to continue. The daemon reports each end, so the command does not poll.
    """
    client = jobs_client(socket, references)
    seconds = None if timeout is None else _seconds(timeout)
    deadline = None if seconds is None else time.monotonic() + seconds
    if isinstance(client, DaemonClient):
        client.deadline = deadline
    poller, ended = Poller(deadline=deadline), list[Job]()
    watch: EndingWatch | None = None
    try:
        found = find_all_jobs(client, references)
        watch = EndingWatch(client, {job["id"]: None for job in found}, poller)
        for job in watch.ends(deadline):
            ended.append(job)
            if not as_json:
                click.echo(f"{title(job)} {outcome(job)}")
            if any_one:
                break
    except DaemonUnreachable as error:
        if not poller.is_late:
            raise
        # This command ended the request itself, so the error is not the daemon's.
        if watch is None or not isinstance(error.__cause__, TimeoutError):
            raise TimedOut(f"--timeout {timeout} has passed; {error}") from error
        watch.timed_out = True
    finally:
        if as_json:
            render.print_json({"jobs": ended})
    if watch.timed_out:
        numbers = ", ".join(map(str, sorted(watch.open)))
        missing = f"job {numbers}" if len(watch.open) == 1 else f"jobs {numbers}"
        raise TimedOut(f"--timeout {timeout} has passed before the end of {missing}")
    if bad := [job for job in ended if job["state"] != SUCCEEDED]:
        listed = ", ".join(f"job {job['id']} ({_state(job)})" for job in bad)
        advice = "; see why: zerotools explain JOB" if any(map(waits_for_user, bad)) else ""
        raise JobFailed(f"not succeeded: {listed}{advice}")


def _seconds(text: str) -> int:
    try:
        return seconds_of(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise BadRequest(f"--timeout {text}: {error}") from None


def _state(job: Job) -> str:
    return display_text(str(job["state"]))
