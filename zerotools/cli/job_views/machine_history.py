"""`monitor --history` and `--peaks`: past values of the machine and of jobs, which the daemon
keeps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.cli.job_views.describe_job import title
from zerotools.cli.job_views.job_curves import has_braille
from zerotools.cli.output import render
from zerotools.cli.output.text_charts import BLOCKS, LETTERS, means_over_time, sparkline
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot import Snapshot

LONGEST_SECONDS = 366 * 86400
POINTS = 240
NEWEST = 1000
PEAK_HEADERS = ("job", "attempt", "host memory", "one GPU", "by its allocator", "ended")
PEAK_RIGHT = ("attempt", "host memory", "one GPU", "by its allocator")


def show_history(client: DaemonClient, seconds: int, as_json: bool) -> int:
    """Print the history of the last `seconds`, and return the exit status: 1 if the daemon has
    trouble with its history.
    """
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise BadRequest(f"--history {seconds} s: must be at least 1 second and at most 366 days")
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
    """Print the peak memory of each attempt, the newest attempt first."""
    found = client.peaks()
    if as_json:
        render.print_json({"peaks": found})
    elif not found:
        render.print_lines(["no attempt has been measured yet"])
    else:
        render.print_lines(peak_lines(found, render.terminal_columns()))
    return 0


def peak_lines(peaks: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """Return the lines of the table of peaks, with one row for each attempt."""
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


NARROWEST, PIPED_COLUMNS = 10, 80
_JOB = re.compile(r"job\.([0-9]+)\.(?:gpu\.(.+)\.memory_used_bytes|host_memory_bytes)")


@dataclass(frozen=True)
class HistoryCurve:
    """One row of the history.

    `owner` is the GPU, host or job, and `what` is the measured value. `columns` has the averages
    and maxima over time. `show` converts a value to text. The scale of the marks is from 0 to
    `top`. If `top` is None, it is from the smallest to the largest average.
    """

    owner: str
    what: str
    columns: Mapping[str, Sequence[float | None]]
    show: Callable[[float], str]
    top: float | None = None


def history_lines(
    tree: Mapping[str, Any],
    seconds: int,
    snapshot: Snapshot | None,
    titles: Mapping[int, str],
    columns: int | None,
    marks: str = BLOCKS,
) -> list[str]:
    """Return the history as lines of text.

    `tree` is the answer of /v1/history, `snapshot` has the names of the GPUs, and `titles` the
    titles of the jobs. An example:

        the last 1 h 00 min, one point per 20 s

        GPU 0 NVIDIA H100   memory  ▁▁▂▇▇▇▇▇   61.2 GiB now, 71.0 GiB most
                            busy    ▁▁▁▇▇▇▇█   98 % now, 100 % most
        host                memory  ▂▂▃▅▅▅▅▅   92.1 GiB now, 95.3 GiB most
        job 3 (tiny)        host    ▁▁▂▅▅▅▅▅   31.0 GiB now, 31.4 GiB most
    """
    span = render.duration(seconds)
    if not tree["times"]:
        return [f"no records of the last {span}"]
    step = render.duration(tree["step_seconds"])
    curves = list(history_curves(tree["series"], snapshot, titles))
    wide = max((render.width(each.owner) for each in curves), default=0)
    what = max((len(each.what) for each in curves), default=0)
    # Words behind the curve: "1023.9 GiB now, 1023.9 GiB most".
    room = max(NARROWEST, (columns or PIPED_COLUMNS) - wide - what - 38)
    lines, before = [f"the last {span}, one point per {step}", ""], ""
    for each in curves:
        owner = each.owner if each.owner != before else ""
        before = each.owner
        bounds = None if each.top is None else (0.0, each.top)
        cells = means_over_time(
            tree["times"], each.columns["mean"], seconds, room, tree["step_seconds"]
        )
        curve = sparkline(cells, room, bounds, marks)
        pad = " " * (wide - render.width(owner))
        lines.append(f"{owner}{pad}  {each.what:<{what}}  {curve:<{room}}  {_numbers(each)}")
    return lines if columns is None else [render.shorten(line, columns) for line in lines]


def history_curves(
    series: Mapping[str, Any], snapshot: Snapshot | None, titles: Mapping[int, str]
) -> Iterator[HistoryCurve]:
    """Yield the rows of the history in order: GPUs, host, jobs."""
    gpus = {gpu.uuid: gpu for gpu in (snapshot.gpus if snapshot else ()) if gpu.uuid}
    seen = {name.split(".")[1] for name in series if name.startswith("gpu.")}
    named = sorted(seen, key=lambda uuid: (gpus[uuid].index if uuid in gpus else 1 << 30, uuid))
    for uuid in named:
        gpu = gpus.get(uuid)
        owner = f"GPU {gpu.index} {render.clean(gpu.name or '')}".strip() if gpu else uuid
        top = float(gpu.memory_total_bytes) if gpu and gpu.memory_total_bytes else None
        yield from _one(series, f"gpu.{uuid}.memory_used_bytes", owner, "memory", render.size, top)
        yield from _one(series, f"gpu.{uuid}.utilization_percent", owner, "busy", _percent, 100.0)
        yield from _one(series, f"gpu.{uuid}.temperature_celsius", owner, "temp", _celsius)
        yield from _one(series, f"gpu.{uuid}.power_watts", owner, "power", _watts)
    total = float(snapshot.host.memory_total_bytes) if snapshot else None
    yield from _one(series, "host.memory_used_bytes", "host", "memory", render.size, total)
    yield from _one(series, "host.cpu_percent", "host", "CPU", _percent, 100.0)
    yield from _one(series, "host.memory_stalled_percent", "host", "stalled", _percent, 100.0)
    if any(series.get("host.swap_used_bytes", {}).get("most", ())):
        yield from _one(series, "host.swap_used_bytes", "host", "swap", render.size)
    yield from _jobs(series, gpus, titles)


def _jobs(
    series: Mapping[str, Any], gpus: Mapping[str, Any], titles: Mapping[int, str]
) -> Iterator[HistoryCurve]:
    matches = [found for name in series if (found := _JOB.fullmatch(name))]
    for found in sorted(matches, key=lambda each: (int(each[1]), each[2] or "")):
        owner = titles.get(int(found[1]), f"job {found[1]}")
        gpu = gpus.get(found[2])
        what = "host" if found[2] is None else f"GPU {gpu.index}" if gpu else found[2]
        yield from _one(series, found[0], owner, what, render.size)


def _one(
    series: Mapping[str, Any],
    name: str,
    owner: str,
    what: str,
    show: Callable[[float], str],
    top: float | None = None,
) -> Iterator[HistoryCurve]:
    if name in series:
        yield HistoryCurve(owner, what, series[name], show, top)


def _numbers(each: HistoryCurve) -> str:
    last = each.columns["mean"][-1]
    most = max((value for value in each.columns["most"] if value is not None), default=None)
    now = "" if last is None else f"{each.show(last)} now, "
    return now + ("" if most is None else f"{each.show(most)} most")


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _celsius(value: float) -> str:
    return f"{value:.0f} °C"


def _watts(value: float) -> str:
    return f"{value:.0f} W"
