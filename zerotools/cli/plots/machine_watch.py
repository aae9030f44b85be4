"""The machine on the terminal: once, or again and again."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from zerotools.cli.job_views.machine_screen import MonitorView, draw, observe, owners_now
from zerotools.cli.output import render
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


def show_once(source: SnapshotSource, client: DaemonClient, *, as_json: bool) -> None:
    """Print one reading."""
    view, tree = observe(source, client)
    if as_json:
        render.print_json(tree)
    else:
        render.print_lines(lines_of(view, render.terminal_columns()))


def lines_of(view: MonitorView, columns: int | None) -> list[str]:
    """Return the screen, with the owners of processes looked up now."""
    return draw(view, owners_now(view.jobs), columns)


def watch(source: SnapshotSource, client: DaemonClient, interval: float, *, as_json: bool) -> None:
    """Print a reading each `interval` seconds, until Ctrl-C; `as_json`: each on one line."""
    stream = sys.stdout
    redraw = stream.isatty() and not as_json
    with _alternate_screen(stream) if redraw else _plainly():
        while True:
            view, tree = observe(source, client)
            if as_json:
                render.print_json_line(tree)
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
    """Use the alternate screen, and restore the terminal's contents afterwards."""
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
