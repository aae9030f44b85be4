"""Makes the rows of the host: processors, memory, pressure, network and disks, in cells of equal
width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.cells import cell_len

from zerotools.cli.top.drawing import short_numbers
from zerotools.cli.top.drawing.styled_lines import (
    Line,
    cut,
    meter,
    padded,
    plain,
    shortened,
    strip,
    warmth,
    width,
)
from zerotools.cli.top.reading.disk_reader import DiskSpace
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.sensors.snapshot import Host, Stall

NARROWEST, WIDEST = 26, 50
"""The smallest and the largest width of a cell, in columns, if the number of cells allows them."""
BAR, LONG_BAR, PAST_FROM = 8, 16, 44
"""The smallest and the largest length of a bar, and the smallest width of a cell that has a
sparkline; in columns.
"""
ROOMY = 34
"""Cells with fewer columns show neither the number of processors nor an unused swap."""
STALLED, VERY_STALLED = 5.0, 20.0
"""If tasks waited for these percentages of the time, there is a warning, or an alarm."""
LOW_SHARE, NO_SHARE = 0.1, 0.03
"""If a disk has less than these free fractions, there is a warning, or an alarm."""
FULL_SHARE, OVERFULL_SHARE = 0.85, 0.95
"""From these used fractions of the memory on, there is a warning, or an alarm."""
_Cell = Callable[[ScreenData, int], Line]


def host_lines(data: ScreenData, columns: int, rows: int) -> list[Line]:
    """Return at most `rows` rows. Disks get the remaining cells; the disks with the least free
    space come first.
    """
    cells: list[_Cell] = [_processors, _memory, _pressure, _network]
    if data.snapshot.host.pressure is None:
        cells.remove(_pressure)
    count = len(cells) + len(data.disks)
    beside = max(2, min(columns // NARROWEST, max(math.ceil(count / rows), columns // WIDEST)))
    room = columns // beside
    parts = [cell(data, room - 2) for cell in cells]
    disks = data.disks[: max(0, rows * beside - len(parts))]
    parts += [_disk(disk, room - 2) for disk in disks]
    lines: list[Line] = []
    for begin in range(0, len(parts), beside):
        line: Line = []
        for part in parts[begin : begin + beside]:
            line += padded(part, room)
        lines.append(cut(line, columns))
    return lines[:rows]


def _barred(
    name: str, share: float | None, said: Line, columns: int, past: Line, meaning: str
) -> Line:
    """Return a cell with a name, a bar, the text `said`, and the sparkline `past`. The bar fills
    the remaining space."""
    room = columns - cell_len(name) - 2 - width(said) - (width(past) + 1 if past else 0)
    bar = max(min(BAR, room), min(LONG_BAR, room)) if room >= 3 else 0
    line: Line = [(f"{name} ", "strong"), *meter(share, bar, meaning), (" " if bar else "", "")]
    return cut([*line, *said, *([(" ", ""), *past] if past else [])], columns)


def _past(data: ScreenData, name: str, top: float | None, columns: int) -> Line:
    return strip(data.past.get(name), columns // 4, top) if columns >= PAST_FROM else []


def _processors(data: ScreenData, columns: int) -> Line:
    host = data.snapshot.host
    load = host.load_average[0] if host.load_average else 0.0
    high = "warning" if load > 2 * host.cpu_count else "quiet"
    said: Line = [(f"{short_numbers.unit(host.cpu_percent, '%'):>4}", "")]
    of = f"/{host.cpu_count}" if columns >= ROOMY else ""
    said.append((f" load {load:.1f}{of}", high))
    share = None if host.cpu_percent is None else host.cpu_percent / 100
    past = _past(data, "host.cpu_percent", 100.0, columns)
    return _barred("CPU", share, said, columns, past, "meter")


def _memory(data: ScreenData, columns: int) -> Line:
    host = data.snapshot.host
    total = host.memory_total_bytes
    share = host.memory_used_bytes / total if total else None
    meaning = warmth(share, FULL_SHARE, OVERFULL_SHARE)
    said: Line = [(short_numbers.used_of(host.memory_used_bytes, total), meaning)]
    if host.swap_used_bytes or (host.swap_total_bytes and columns >= ROOMY):
        swap = f" swap {short_numbers.size(host.swap_used_bytes)}"
        said.append((swap, "warning" if host.swap_used_bytes else "quiet"))
    past = _past(data, "host.memory_used_bytes", float(total), columns)
    return _barred("RAM", share, said, columns, past, meaning or "meter")


def _pressure(data: ScreenData, columns: int) -> Line:
    """Return the cell of pressure: the percentage of the last 10 s in which tasks waited for
    memory, processors or I/O. A narrow cell leaves out the processors, because `_processors` shows
    the load."""
    pressure = data.snapshot.host.pressure
    assert pressure is not None
    stalls = {"mem": pressure.memory, "cpu": pressure.cpu, "io": pressure.io}
    line: Line = []
    for names in (("mem", "cpu", "io"), ("mem", "io")):
        line = [("PSI%", "strong")]
        for name in names:
            if (stall := stalls[name]) is not None:
                line += [(f" {name} ", "quiet"), _stall(name, stall)]
        if width(line) <= columns:
            break
    return cut(line, columns)


def _stall(name: str, stall: Stall) -> tuple[str, str]:
    lost = stall.some_avg10_percent
    # With busy processors some task always waits, which is not a problem.
    meaning = "" if name == "cpu" else warmth(lost, STALLED, VERY_STALLED)
    return f"{lost:.0f}" if lost >= 9.95 or not lost else f"{lost:.1f}", meaning


def _network(data: ScreenData, columns: int) -> Line:
    host = data.snapshot.host
    line: Line = [("net", "strong")]
    for mark, name, value in _directions(host):
        line += [(f" {mark} ", "quiet"), (f"{short_numbers.size(value):>4}", "")]
        series: Sequence[float | None] = data.past.get(name) or ()
        most = max((each for each in series if each is not None), default=0.0)
        if columns >= PAST_FROM:
            line += [(" ", ""), *strip(series, columns // 6, most or 1.0)]
    return cut([*line, (" /s", "quiet")], columns)


def _directions(host: Host) -> tuple[tuple[str, str, float | None], ...]:
    received, sent = "network_received_bytes_per_second", "network_sent_bytes_per_second"
    return (
        ("↓", f"host.{received}", host.network_received_bytes_per_second),
        ("↑", f"host.{sent}", host.network_sent_bytes_per_second),
    )


def _disk(disk: DiskSpace, columns: int) -> Line:
    name = plain(disk.at)
    if disk.why is not None:
        said = plain(disk.why)
        room = max(6, columns - len(said) - 2)
        return cut([(f"{shortened(name, room)} ", "strong"), (said, "bad")], columns)
    total, free = disk.total_bytes or 0, disk.free_bytes or 0
    share = free / total if total else 0.0
    meaning = "bad" if share < NO_SHARE else "warning" if share < LOW_SHARE else ""
    of = f" of {short_numbers.size(total)}" if columns >= PAST_FROM - 8 else ""
    words: Line = [(f"{short_numbers.size(free)} free{of}", meaning)]
    if disk.is_read_only:
        words.append((" read-only", "bad"))
    short = shortened(name, max(6, columns - width(words) - 5))
    return _barred(short, 1 - share, words, columns, [], meaning or "meter")
