"""`zerotools priority`: change the priority of a waiting job."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from zerotools.cli.job_actions.job_reference import one_job_argument
from zerotools.cli.job_actions.send_job_requests import print_changed, request_each
from zerotools.cli.job_views.describe_job import title
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.priority_range import LEAST_PRIORITY, MOST_PRIORITY


@click.command("priority", context_settings={"ignore_unknown_options": True})
@one_job_argument
@click.argument("priority", metavar="N", type=click.IntRange(LEAST_PRIORITY, MOST_PRIORITY))
@socket_option
@json_option
def command(reference: str, priority: int, socket: Path | None, as_json: bool) -> None:
    """Give a job another priority, from -10 to 10: the job with the higher priority starts first.

    The default is 0. Among jobs of one priority, the job that was submitted first starts first. A
    running job continues; its priority counts when it waits again. The administrator may set a
    lower maximum for a user ([priority.classes] of the daemon's configuration).
    """
    client = DaemonClient(socket)
    told = None if as_json else lambda job: f"{title(job)} has priority {job['priority']}"
    asked = partial(client.set_priority, priority=priority)
    body = {"do": "priority", "priority": priority}
    jobs, errors = request_each(client, [reference], asked, told, body)
    print_changed(jobs, errors, as_json=as_json)
