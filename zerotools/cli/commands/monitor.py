"""`zerotools monitor`: show GPU and host memory, and the jobs that use it."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.click_options import (
    OUTPUT,
    Duration,
    GroupedCommand,
    interval_option,
    json_option,
    option,
    socket_option,
)
from zerotools.core.errors import EXIT_INTERRUPTED, BadRequest
from zerotools.sensors.snapshot_source import SnapshotSource

DAEMON_SECONDS = 2.0


@click.command("monitor", cls=GroupedCommand)
@option("--once", group=OUTPUT, is_flag=True, help="Print once and exit.")
@interval_option(least=0.1)
@option(
    "--history",
    group=OUTPUT,
    type=Duration(),
    metavar="TIME",
    help="Print the records of this last period (1h, 12h, 30d; at most a year), and exit.",
)
@option(
    "--peaks",
    group=OUTPUT,
    is_flag=True,
    help="Print the peak memory of each attempt of a job, and exit.",
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
    """Show GPU and host memory, and the jobs and processes that use it, until Ctrl-C.

    This works without the daemon too. With --json and without --once, every reading is one line.
    """
    if sum((once, history is not None, peaks)) > 1:
        raise BadRequest("--once, --history and --peaks exclude each other; give one of them")
    if peaks or history is not None:
        return _past(socket, history, as_json)
    with SnapshotSource() as source:
        source.begin()  # it takes 0.1 s; meanwhile the rest is imported
        from zerotools.cli.job_views.machine_screen import show_once, watch
        from zerotools.jobs.client.daemon_client import DaemonClient

        client = DaemonClient(socket, timeout_seconds=DAEMON_SECONDS)
        if once:
            show_once(source, client, as_json=as_json)
            return 0
        try:
            watch(source, client, interval, as_json=as_json)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    return 0


def _past(socket: Path | None, history: int | None, as_json: bool) -> int:
    from zerotools.cli.job_views.machine_history import show_history, show_peaks
    from zerotools.jobs.client.daemon_client import DaemonClient

    client = DaemonClient(socket)
    return (
        show_peaks(client, as_json) if history is None else show_history(client, history, as_json)
    )
