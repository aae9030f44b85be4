"""`monitor --history` and `--peaks`: the daemon's history of the machine and of its jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.cli.job_views.describe import title
from zerotools.cli.output import render
from zerotools.cli.output.sparkline import BLOCKS, LETTERS
from zerotools.cli.plots.history_chart import history_lines
from zerotools.cli.plots.terminal_plot import has_braille
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Snapshot

LONGEST_SECONDS = 366 * 86400
POINTS = 240
NEWEST = 1000
PEAK_HEADERS = ("job", "attempt", "host memory", "one GPU", "by its allocator", "ended")
PEAK_RIGHT = ("attempt", "host memory", "one GPU", "by its allocator")


def show_history(client: DaemonClient, seconds: int, as_json: bool) -> int:
    """Print the last `seconds`; return 1 if the daemon keeps no history."""
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise BadRequest(f"--history {seconds} s: must be from 1 second to 366 days")
    tree = client.history(seconds, POINTS)
    if as_json:
        render.print_json(tree)
    else:
        render.print_lines(_lines(client, tree, seconds))
    return 1 if tree["trouble"] else 0


def _lines(client: DaemonClient, tree: Mapping[str, Any], seconds: int) -> list[str]:
    found = client.machine()["snapshot"]
    snapshot = None if found is None else Snapshot.from_json(found)
    titles = {job["id"]: title(job) for job in client.jobs(limit=NEWEST)}
    marks = BLOCKS if has_braille(sys.stdout) else LETTERS
    columns = render.terminal_columns()
    lines = history_lines(tree, seconds, snapshot, titles, columns, marks)
    return [*lines, *filter(None, [tree["trouble"]])]


def show_peaks(client: DaemonClient, as_json: bool) -> int:
    """Print the most that each attempt held, the newest first."""
    found = client.peaks()
    if as_json:
        render.print_json({"peaks": found})
    elif not found:
        render.print_lines(["no attempt has been measured yet"])
    else:
        render.print_lines(peak_lines(found, render.terminal_columns()))
    return 0


def peak_lines(peaks: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """Return a table, one row for each attempt."""
    rows = [
        (
            f"{each['job_id']}" + (f" ({render.clean(each['name'])})" if each["name"] else ""),
            str(each["attempt"]),
            render.size(each["host_bytes"]),
            render.size(each["gpu_bytes"]),
            render.size(each["gpu_reported_bytes"]),
            render.moment(each["ended"]),
        )
        for each in peaks
    ]
    return render.table(PEAK_HEADERS, rows, right=PEAK_RIGHT, columns=columns)
