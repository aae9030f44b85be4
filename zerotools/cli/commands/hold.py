"""`zerotools hold`: keep jobs that wait from starting."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.job_views.describe import title
from zerotools.cli.job_views.job_reference import jobs_argument
from zerotools.cli.job_views.several import ask_each, finish
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("hold")
@jobs_argument
@socket_option
@json_option
def command(references: tuple[str, ...], socket: Path | None, as_json: bool) -> None:
    """Keep waiting jobs from starting, until zerotools release.

    A job on hold keeps its number, and so its position among jobs of its priority. A running job
    cannot be put on hold: zerotools pause saves it and releases its GPUs. Jobs that the daemon
    itself has set aside are held, not on hold: use zerotools resume for them.
    """
    client = DaemonClient(socket)
    told = None if as_json else lambda job: f"{title(job)} is on hold"
    done = ask_each(client, references, client.hold, told, {"do": "hold"})
    finish(*done, as_json=as_json)
