"""The daemon's history of the machine, as lines of text: pure.

the last 1h, a point each 20 s

GPU 0 NVIDIA H100   memory  ▁▁▂▇▇▇▇▇   61.2 GiB now, 71.0 GiB most
                    busy    ▁▁▁▇▇▇▇█   98 % now, 100 % most
host                memory  ▂▂▃▅▅▅▅▅   92.1 GiB now, 95.3 GiB most
job 3 (tiny)        host    ▁▁▂▅▅▅▅▅   31.0 GiB now, 31.4 GiB most
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.cli.output import render
from zerotools.cli.output.sparkline import BLOCKS, sparkline, spread
from zerotools.sensors.snapshot import Snapshot

NARROWEST, PIPED_COLUMNS = 10, 80
_JOB = re.compile(r"job\.([0-9]+)\.(?:gpu\.(.+)\.memory_used_bytes|host_memory_bytes)")


@dataclass(frozen=True)
class Drawn:
    """One curve: its owner, its subject, its columns, its unit, and the value of the highest
    mark."""

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
    """Return the lines of the answer `tree` of /v1/history; `snapshot` has the GPUs' names,
    `titles` the jobs'."""
    span = render.duration(seconds)
    if not tree["times"]:
        return [f"no records of the last {span}"]
    step = render.duration(tree["step_seconds"])
    curves = list(drawn_of(tree["series"], snapshot, titles))
    wide = max((render.width(each.owner) for each in curves), default=0)
    what = max((len(each.what) for each in curves), default=0)
    # Words behind the curve: "1023.9 GiB now, 1023.9 GiB most".
    room = max(NARROWEST, (columns or PIPED_COLUMNS) - wide - what - 38)
    lines, before = [f"the last {span}, one point per {step}", ""], ""
    for each in curves:
        owner = each.owner if each.owner != before else ""
        before = each.owner
        bounds = None if each.top is None else (0.0, each.top)
        cells = spread(tree["times"], each.columns["mean"], seconds, room, tree["step_seconds"])
        curve = sparkline(cells, room, bounds, marks)
        pad = " " * (wide - render.width(owner))
        lines.append(f"{owner}{pad}  {each.what:<{what}}  {curve:<{room}}  {_numbers(each)}")
    return lines if columns is None else [render.shorten(line, columns) for line in lines]


def drawn_of(
    series: Mapping[str, Any], snapshot: Snapshot | None, titles: Mapping[int, str]
) -> Iterator[Drawn]:
    """Yield the curves that are drawn, in order: GPUs, host, jobs."""
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
) -> Iterator[Drawn]:
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
) -> Iterator[Drawn]:
    if name in series:
        yield Drawn(owner, what, series[name], show, top)


def _numbers(each: Drawn) -> str:
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
