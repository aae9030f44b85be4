"""`zerotools release`: let held jobs start."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_actions.job_reference import jobs_argument
from zerotools.cli.job_actions.send_job_requests import (
    print_changed,
    release_sentence,
    request_each,
)
from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("release")
@jobs_argument
@socket_option
@json_option
def command(references: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Release held jobs, so that they start when their turn comes.

    A job may be held by you, by the daemon, or because a job in its --after has failed. A job that
    ran before continues from its newest checkpoint. A job that is still saving is queued again when
    it has saved.

    A released job still waits for its start time (--begin) and for the jobs in its --after, but not
    for a job that has ended without success.
    """
    client = DaemonClient(socket)
    told = None if as_json else release_sentence
    print_changed(
        *request_each(client, references, client.release, told, {"do": "release"}), as_json=as_json
    )
