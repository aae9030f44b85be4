"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-~=+*#"
"""For terminals that cannot show blocks."""
RESTING_SECONDS = 20
"""Twice the time between two samples of the daemon while no job runs."""


def sparkline(
    values: Sequence[float | None],
    width: int,
    bounds: tuple[float, float] | None = None,
    marks: str = BLOCKS,
) -> str:
    """Return `values` in at most `width` cells, each the mean of its part; blank if unknown.
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


def spread(
    times: Sequence[int],
    values: Sequence[float | None],
    seconds: int,
    cells: int,
    step_seconds: int,
) -> list[float | None]:
    """Return means of `cells` equal parts of the `seconds` until the last of `times`. A part
    without a measurement repeats the one before, for as long as an idle daemon does not measure."""
    begin = times[-1] + step_seconds - seconds
    held: list[list[float]] = [[] for _ in range(cells)]
    for time, value in zip(times, values, strict=True):
        if value is not None and time >= begin:
            held[min(cells - 1, (time - begin) * cells // seconds)].append(value)
    found: list[float | None] = []
    left = 0.0
    for part in held:
        left = max(step_seconds, RESTING_SECONDS) if part else left - seconds / cells
        before = found[-1] if found and left > 0 else None
        found.append(sum(part) / len(part) if part else before)
    return found
