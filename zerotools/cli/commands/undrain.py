"""`zerotools undrain`: start jobs again."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option, socket_option
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient


@click.command("undrain")
@socket_option
@json_option
def command(socket: Path | None, as_json: bool) -> None:
    """Start jobs again after zerotools drain. Only administrators may do it."""
    health = DaemonClient(socket).undrain()
    if as_json:
        render.print_json({"daemon": health})
        return
    click.echo("the queue is not drained any more: jobs start again")
