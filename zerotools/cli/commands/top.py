"""`zerotools top`: GPUs, host and jobs on a full screen."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from zerotools.cli.job_views.machine_screen import observe
from zerotools.cli.options.shared import interval_option, json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.top.looking import Looking
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.source import SnapshotSource

DAEMON_SECONDS = 2.0
NARROWEST = 60


@click.command("top")
@interval_option(least=0.5)
@socket_option
@json_option
def command(interval: float, socket: Path | None, as_json: bool) -> int:
    """Show GPUs, host memory and jobs on a full screen; ? lists the keys.

    This works without the daemon too. It needs the extra `top` (textual) and a terminal of 60
    columns; zerotools monitor needs neither. With --json it prints one reading and ends.
    """
    client = DaemonClient(socket, timeout_seconds=DAEMON_SECONDS)
    with SnapshotSource() as source:
        if as_json:
            render.print_json(observe(source, client)[1])
            return 0
        _check_terminal()
        try:
            from zerotools.cli.top.screen import Top  # the extra; it takes 0.2 s
        except ImportError:
            raise Unsupported(
                "zerotools top needs textual: pip install 'zerotools[top]'; zerotools monitor "
                "shows the same machine without it"
            ) from None
        Top(Looking(source, client).look, client, interval).run()
    return 0


def _check_terminal() -> None:
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise BadRequest("zerotools top needs a terminal; zerotools monitor --once does not")
    columns = render.terminal_columns()
    if columns is not None and columns < NARROWEST:
        raise BadRequest(
            f"this terminal has {columns} columns, and zerotools top needs {NARROWEST}; make it "
            "wider, or take zerotools monitor"
        )
