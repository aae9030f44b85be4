"""`zerotools monitor`: GPU and host memory, and which job holds what."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from zerotools.cli.job_views.describe import title, watched_process
from zerotools.cli.job_views.machine_screen import MonitorView, draw
from zerotools.cli.job_views.process_owners import find_owners
from zerotools.cli.options.shared import json_option, socket_option
from zerotools.cli.output import render
from zerotools.core.errors import EXIT_INTERRUPTED, DaemonError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE
from zerotools.jobs.tables.adopted import AdoptedProcess
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.source import SnapshotSource

DAEMON_SECONDS = 2.0
ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


@click.command("monitor")
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@socket_option
@json_option
def command(once: bool, interval: float, socket: Path | None, as_json: bool) -> int:
    """Show GPU and host memory, and the jobs and processes that hold it, until Ctrl-C.

    This works without the daemon too. With --json and without --once, every reading is one line.
    """
    client = DaemonClient(socket, timeout_seconds=DAEMON_SECONDS)
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


def observe(source: SnapshotSource, client: DaemonClient) -> tuple[MonitorView, dict[str, Any]]:
    """The machine, with the daemon's jobs if one answers; as a view and as JSON."""
    snapshot = source.read()
    tree: dict[str, Any] = {"snapshot": snapshot.to_json(), "jobs": None, "leases": None}
    try:
        jobs = {job["id"]: job for state in ACTIVE for job in client.jobs(state=state)}
        leases = client.machine()["leases"]
    except DaemonError as error:
        return MonitorView(snapshot, daemon=_no_daemon(error, client)), {
            **tree,
            "daemon_error": str(error),
        }
    titles = {job_id: title(job) for job_id, job in jobs.items()}
    held = {
        lease["gpu_uuid"]: titles.get(lease["job_id"], f"job {lease['job_id']}") for lease in leases
    }
    listed = [jobs[job_id] for job_id in sorted(jobs)]
    view = MonitorView(snapshot, daemon="none is running", jobs=listed, leases=held)
    return view, {**tree, "jobs": listed, "leases": leases, "daemon_error": None}


def _no_daemon(error: DaemonError, client: DaemonClient) -> str:
    if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
        return f"no daemon answers at {client.socket}"
    return str(error)


def lines_of(view: MonitorView, columns: int | None) -> list[str]:
    """The screen, with the owners of processes looked up now."""
    run_dirs = {job["attempt"]["run_dir"]: title(job) for job in view.jobs if job["attempt"]}
    return draw(view, find_owners(run_dirs, _watched(view.jobs)), columns)


def _watched(jobs: Sequence[Mapping[str, Any]]) -> dict[str, AdoptedProcess]:
    """Processes that jobs watch, by the run directory of the attempt."""
    return {
        job["attempt"]["run_dir"]: watched
        for job in jobs
        if job["attempt"] and (watched := watched_process(job)) is not None
    }


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
