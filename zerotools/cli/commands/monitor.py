"""`zerotools monitor`: GPU and host memory, and which job holds what."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from zerotools.cli.job_views.machine_screen import MonitorView, draw, observe, owners_now
from zerotools.cli.options.shared import interval_option, json_option, socket_option
from zerotools.cli.options.spans import Span
from zerotools.cli.output import render
from zerotools.core.errors import EXIT_INTERRUPTED, BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.source import SnapshotSource

DAEMON_SECONDS = 2.0
ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


@click.command("monitor")
@click.option("--once", is_flag=True, help="Print once and end.")
@interval_option(least=0.1)
@click.option(
    "--history",
    type=Span(),
    metavar="TIME",
    help="Print what the daemon kept of the last 1h, 12h, 30d (a year at most), and end.",
)
@click.option(
    "--peaks", is_flag=True, help="Print the most that each attempt of a job held, and end."
)
@socket_option
@json_option
def command(
    once: bool,
    interval: float,
    history: int | None,
    peaks: bool,
    socket: Path | None,
    as_json: bool,
) -> int:
    """Show GPU and host memory, and the jobs and processes that hold it, until Ctrl-C.

    This works without the daemon too. With --json and without --once, every reading is one line.
    """
    client = DaemonClient(socket, timeout_seconds=DAEMON_SECONDS)
    if sum((once, history is not None, peaks)) > 1:
        raise BadRequest("--once, --history and --peaks exclude each other: give one of them")
    if peaks or history is not None:
        from zerotools.cli.plots.machine_past import show_history, show_peaks

        asked = DaemonClient(socket)
        return show_peaks(asked, as_json) if peaks else show_history(asked, history or 0, as_json)
    with SnapshotSource() as source:
        if once:
            view, tree = observe(source, client)
            if as_json:
                render.print_json(tree)
            else:
                render.print_lines(lines_of(view, render.terminal_columns()))
            return 0
        try:
            _watch(source, client, interval, as_json)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    return 0


def lines_of(view: MonitorView, columns: int | None) -> list[str]:
    """The screen, with the owners of processes looked up now."""
    return draw(view, owners_now(view.jobs), columns)


def _watch(source: SnapshotSource, client: DaemonClient, interval: float, as_json: bool) -> None:
    stream = sys.stdout
    redraw = stream.isatty() and not as_json
    with _alternate_screen(stream) if redraw else _plainly():
        while True:
            view, tree = observe(source, client)
            if as_json:
                stream.write(json.dumps(tree) + "\n")
            elif redraw:
                _redraw(stream, lines_of(view, render.terminal_columns(stream)), view.snapshot)
            else:
                stream.write("\n".join([*lines_of(view, None), "", ""]))
            stream.flush()
            time.sleep(interval)


@contextmanager
def _plainly() -> Iterator[None]:
    yield


@contextmanager
def _alternate_screen(stream: TextIO) -> Iterator[None]:
    """What was on the terminal before is there again afterwards."""
    stream.write(ENTER)
    try:
        yield
    finally:
        stream.write(LEAVE)
        stream.flush()


def _redraw(stream: TextIO, lines: list[str], snapshot: Snapshot) -> None:
    """Write over the old lines rather than clear first, which would flicker."""
    size = shutil.get_terminal_size()
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.taken_at))
    shown = [render.shorten(f"zerotools monitor  {clock}  (Ctrl-C ends it)", size.columns), ""]
    shown += lines
    if len(shown) > size.lines:
        shown = [*shown[: size.lines - 1], f"… {len(shown) - size.lines + 1} lines more"]
    stream.write("\x1b[H" + "\x1b[K\r\n".join(shown) + "\x1b[K\x1b[J")
