"""The processes that hold memory of GPUs: a line for each, if the screen has space for it."""

from __future__ import annotations

from zerotools.cli.output import render
from zerotools.cli.top.drawing.figures import in_ranges
from zerotools.cli.top.drawing.styled_lines import Line, cut, filled, plain
from zerotools.cli.top.reading.gpu_holders import GpuHolder
from zerotools.cli.top.reading.looking import Look


def process_lines(look: Look, columns: int, rows: int) -> list[Line]:
    """Return a header and the processes, in at most `rows` rows; empty without processes."""
    places: dict[int, list[int]] = {}
    held: dict[int, int | None] = {}
    whose: dict[int, GpuHolder] = {}
    for index, holders in look.holders.items():
        for each in holders:
            places.setdefault(each.pid, []).append(index)
            before = held.get(each.pid, 0)
            known = before is not None and each.held_bytes is not None
            held[each.pid] = (before or 0) + (each.held_bytes or 0) if known else None
            whose[each.pid] = each
    if not whose or rows < 2:
        return []
    lines: list[Line] = [[(f"{'pid':>8} {'memory':>10}  {'GPU':<8} process", "title")]]
    for pid, each in list(whose.items())[: rows - 1]:
        size = filled(render.size(held[pid]), 10, right=True)
        line: Line = [(f"{pid:>8} ", "quiet"), (size, ""), ("  ", "")]
        line.append((f"{filled(in_ranges(places[pid]), 8)} ", "strong"))
        lines.append(cut([*line, (plain(each.owner), each.kind)], columns))
    if (more := len(whose) - rows + 1) > 0:
        lines[-1] = [(f"{'':9}and {more + 1} more", "quiet")]
    return lines
