"""`zerotools top`: show GPUs, host and jobs on a full screen."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from zerotools.cli.job_views.job_curves import has_braille
from zerotools.cli.job_views.machine_screen import observe
from zerotools.cli.options.click_options import interval_option, json_option, socket_option
from zerotools.cli.output import render
from zerotools.cli.output.colours import wants_colour
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot_source import SnapshotSource

DAEMON_SECONDS = 2.0
NARROWEST = 60
AUTO, CONSOLE = "auto", "linux"
DUMB = ("dumb", "unknown", "")
"""Values of the variable TERM for terminals that can only print lines."""


@click.command("top")
@interval_option(least=0.5)
@click.option(
    "--background",
    type=click.Choice((AUTO, "dark", "light")),
    default=AUTO,
    show_default=True,
    help="Background of the terminal, for which colours are chosen.  [auto: ask the terminal]",
)
@socket_option
@json_option
def command(interval: float, background: str, socket: Path | None, as_json: bool) -> int:
    """Show GPUs, host and jobs on a full screen; ? lists the keys.

    This works without the daemon too. The command needs the extra `top` (textual) and a terminal of
    60 columns; zerotools monitor needs neither. With --json it prints one reading and exits.
    """
    client = DaemonClient(socket, timeout_seconds=DAEMON_SECONDS)
    with SnapshotSource() as source:
        if as_json:
            render.print_json(observe(source, client)[1])
            return 0
        _check_terminal()
        return _run(source, client, DaemonClient(socket), interval, background)


def _run(
    source: SnapshotSource,
    reading: DaemonClient,
    asking: DaemonClient,
    interval: float,
    background: str,
) -> int:
    """Run the screen until the user quits, and return the exit status. If an error ended the
    screen, raise that error.
    """
    source.begin()
    try:
        from zerotools.cli.top.reading.disk_reader import DiskReader
        from zerotools.cli.top.reading.read_screen_values import ScreenReader
        from zerotools.cli.top.screen.colour_theme import ask_terminal, background_of, styles_of
        from zerotools.cli.top.screen.top_app import Top  # the extra; it takes 0.2 s
    except ImportError:
        raise package_not_installed(
            "zerotools top", "textual", "use zerotools monitor, which shows the same machine"
        ) from None
    if background == AUTO:
        ask = partial(ask_terminal, sys.stdin.fileno(), sys.stderr.fileno())
        background = background_of(os.environ, ask) or AUTO
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]  # empty means unset, but textual reads it as set
    colours = wants_colour(sys.stdout)
    if not colours:
        os.environ["NO_COLOR"] = "1"  # for textual
    looking = ScreenReader(source, reading, DiskReader())
    letters = not has_braille(sys.stderr) or os.environ.get("TERM") == CONSOLE
    styles = styles_of(background, colours=colours)
    app = Top(looking, asking, interval, styles, letters=letters)
    try:
        status = app.run()
    finally:
        looking.close()
    if app.failure is not None:
        raise app.failure
    return status or 0


def _check_terminal() -> None:
    # textual draws on standard error, and reads keys from standard input.
    streams = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    if other := [name for name, stream in streams.items() if not stream.isatty()]:
        raise BadRequest(
            f"zerotools top needs a terminal, and standard {other[0]} is not a terminal; use "
            "zerotools monitor --once"
        )
    if os.environ.get("TERM", "dumb") in DUMB:
        raise BadRequest(
            f"TERM={os.environ.get('TERM', '')} means a terminal without a full screen; set TERM "
            "to the real type, or use zerotools monitor --once"
        )
    columns = render.terminal_columns()
    if columns is not None and columns < NARROWEST:
        raise BadRequest(
            f"this terminal has {columns} columns, and zerotools top needs {NARROWEST}; make it "
            "wider, or use zerotools monitor"
        )
