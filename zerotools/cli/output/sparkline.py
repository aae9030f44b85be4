"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-~=+*#"
"""For terminals that cannot show blocks."""


def sparkline(
    values: Sequence[float | None],
    width: int,
    bounds: tuple[float, float] | None = None,
    marks: str = BLOCKS,
) -> str:
    """`values` in `width` cells at most, each the mean of its part; blank where nothing is known.
    `bounds` are the values of the lowest and the highest mark; None: those of the curve."""
    if not values or width < 1:
        return ""
    cells = min(width, len(values))
    edges = [index * len(values) // cells for index in range(cells + 1)]
    means = [_mean(values[a:b]) for a, b in pairwise(edges) if b > a]
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * len(means)
    low, high = bounds or (min(known), max(known))
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else marks[_at((mean - low) * scale)] for mean in means)


def _at(value: float) -> int:
    return max(0, min(len(BLOCKS) - 1, round(value)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
