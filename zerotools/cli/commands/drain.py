"""`zerotools drain`: start no more jobs."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("drain")
@click.option("--why", metavar="TEXT", help="Reason to show for waiting jobs.")
@socket_option
@json_option
def command(why: str | None, socket: Path | None, as_json: bool) -> None:
    """Start no more jobs until zerotools undrain. Running jobs continue, and may be cancelled.

    Until then, submitted jobs wait, and jobs that crash are not restarted. Restarts of the daemon
    and of the machine do not end the drain. Only administrators may use this command.
    """
    client = DaemonClient(socket)
    health = client.drain(why)
    if as_json:
        render.print_json({"daemon": health})
        return
    click.echo(
        "the queue is drained: nothing starts until zerotools undrain; running jobs continue"
    )
