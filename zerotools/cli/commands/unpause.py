"""`zerotools unpause`: let paused jobs go on."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_views.describe import Job, title
from zerotools.cli.job_views.job_reference import jobs_argument
from zerotools.cli.job_views.several import ask_each, finish
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("unpause")
@jobs_argument
@socket_option
@json_option
def command(references: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Continue paused jobs when their turn comes.

    An unpaused job gets its old position in the queue. A job that is still saving is queued again
    when it has saved.
    """
    client = DaemonClient(socket)
    told = None if as_json else _told
    finish(*ask_each(client, references, client.unpause, told, {"do": "unpause"}), as_json=as_json)


def _told(job: Job) -> str:
    state = str(job["state"]).replace("_", " ")
    why = f": {render.clean(job['reason'])}" if job["reason"] else ""
    return f"{title(job)} is no longer paused: it is {state}{why}"
