"""Bars: of memory by its owners, of anything by its share, and of a step within its job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zerotools.cli.output.text_charts import BLOCKS, sparkline
from zerotools.cli.top.drawing.styled_lines import Line, Piece
from zerotools.cli.top.reading.gpu_holders import JOB, RESIDUE, STRANGER, GpuShare
from zerotools.sensors.snapshot import Gpu

FREE = "free"
OWNER_MARKS = {JOB: "▇", STRANGER: "▓", RESIDUE: "▚", FREE: "╌"}
"""Marks of different shapes too, because some users do not see colours."""


def memory_bar(gpu: Gpu, shares: Sequence[GpuShare], columns: int) -> Line:
    """Return the memory of a GPU, a part for each kind of owner."""
    total = gpu.memory_total_bytes or 0
    if total <= 0:
        return [("?" * columns, "quiet")]
    bar: Line = []
    left = columns
    for kind in (JOB, STRANGER, RESIDUE):
        held = sum(share.held_bytes for share in shares if share.kind == kind)
        cells = min(left, math.ceil(held / total * columns)) if held else 0
        if cells:
            bar.append((OWNER_MARKS[kind] * cells, kind))
            left -= cells
    if not bar and gpu.memory_used_bytes:
        cells = min(left, round(gpu.memory_used_bytes / total * columns))
        bar, left = [(OWNER_MARKS[JOB] * cells, "quiet")], left - cells
    return [*bar, (OWNER_MARKS[FREE] * left, FREE)]


def meter(share: float | None, columns: int, meaning: str = "meter") -> Line:
    """Return a thin bar; `share` is from 0 to 1."""
    if columns <= 0:
        return []
    if share is None:
        return [("╌" * columns, "track")]
    done = min(columns, max(0, round(share * columns)))
    done = max(1, done) if share > 0 else done
    return [
        piece for piece in (("━" * done, meaning), ("╌" * (columns - done), "track")) if piece[0]
    ]


def level(share: float | None) -> Piece:
    """Return one cell that is higher the more it is."""
    if share is None:
        return " ", ""
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))], "meter"


def strip(values: Sequence[float | None] | None, columns: int, top: float | None = None) -> Line:
    """Return the newest values in at most `columns` cells, on a scale from 0 to `top`."""
    if not values:
        return []
    return [(sparkline(values, columns, None if top is None else (0.0, top)), "strip")]


def warmth(value: float | None, warm: float, hot: float) -> str:
    """Return the style of a number that should be low."""
    if value is None or value < warm:
        return ""
    return "bad" if value >= hot else "warning"
