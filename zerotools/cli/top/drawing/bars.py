"""Bars: of a GPU's memory by its owners, and of any share from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zerotools.cli.output.text_charts import BLOCKS, sparkline
from zerotools.cli.top.drawing.styled_lines import Line, Piece
from zerotools.cli.top.reading.gpu_holders import JOB, RESIDUE, STRANGER, GpuShare
from zerotools.sensors.snapshot import Gpu

FREE = "free"
OWNER_MARKS = {JOB: "▇", STRANGER: "▓", RESIDUE: "▚", FREE: "╌"}
"""The marks differ in shape as well as in colour, because some users do not see colours."""


def memory_bar(gpu: Gpu, shares: Sequence[GpuShare], columns: int) -> Line:
    """Return the memory of a GPU as a bar with a part for each kind of owner."""
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
    """Return a thin bar for a share from 0 to 1; None: it is unknown."""
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
    """Return one cell with a block as high as the share, from 0 to 1."""
    if share is None:
        return " ", ""
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))], "meter"


def strip(values: Sequence[float | None] | None, columns: int, top: float | None = None) -> Line:
    """Return a sparkline of the newest values in at most `columns` cells, on a scale from 0 to
    `top`.
    """
    if not values:
        return []
    return [(sparkline(values, columns, None if top is None else (0.0, top)), "strip")]


def warmth(value: float | None, warm: float, hot: float) -> str:
    """Return the style of a value that should be low: `warning` from `warm` on, `bad` from `hot`
    on.
    """
    if value is None or value < warm:
        return ""
    return "bad" if value >= hot else "warning"
