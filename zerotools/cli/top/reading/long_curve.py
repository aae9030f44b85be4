"""A curve of any length in a bounded number of parts.

A job of a million steps reports a million losses, and a screen has a few hundred columns. So steps
are kept in parts of equal length, of each its least, its greatest and the sum of its values; where
the parts become too many, each two of them become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerotools.cli.output.braille_chart import SeriesPoints

MOST_PARTS = 2000


@dataclass(frozen=True)
class CurveSeen:
    """A curve as it was at one moment: `points` to draw, `means` of the parts in their order, and
    single values; None where there is no point. `least_step` is the step of the least."""

    points: SeriesPoints = field(default_factory=dict)
    means: tuple[float, ...] = ()
    first: float | None = None
    last: float | None = None
    last_step: int | None = None
    least: float | None = None
    least_step: int | None = None


@dataclass(slots=True)
class _Part:
    first_step: int
    first: float
    last_step: int
    last: float
    low: float
    low_step: int
    high: float
    sum: float
    count: int

    def join(self, later: _Part) -> None:
        self.last_step, self.last = later.last_step, later.last
        if later.low < self.low:
            self.low, self.low_step = later.low, later.low_step
        self.high = max(self.high, later.high)
        self.sum += later.sum
        self.count += later.count


class LongCurve:
    """Takes points in the order of their steps. Not for use by several threads at once."""

    def __init__(self, most: int = MOST_PARTS) -> None:
        self._most = most
        self._length = 1
        self._parts: dict[int, _Part] = {}
        self._seen: CurveSeen | None = CurveSeen()

    def put(self, step: int, value: float) -> None:
        """Add a point. A step that is there is not taken twice; see `cut`."""
        new = _Part(step, value, step, value, value, step, value, value, 1)
        old = self._parts.setdefault(step // self._length, new)
        if old is not new and step > old.last_step:
            old.join(new)
        self._seen = None
        if len(self._parts) > self._most:
            self._halve()

    def cut(self, step: int) -> None:
        """Forget all from `step` on; a part that begins before it stays."""
        for place in [place for place in self._parts if place * self._length >= step]:
            del self._parts[place]
            self._seen = None

    def seen(self) -> CurveSeen:
        """The curve now; the same object as before if nothing was added."""
        if self._seen is None:
            self._seen = _seen([self._parts[place] for place in sorted(self._parts)])
        return self._seen

    def _halve(self) -> None:
        self._length *= 2
        parts, self._parts = self._parts, {}
        for place in sorted(parts):
            part = parts[place]
            old = self._parts.setdefault(part.first_step // self._length, part)
            if old is not part:
                old.join(part)


def _seen(parts: list[_Part]) -> CurveSeen:
    if not parts:
        return CurveSeen()
    points: dict[int, float] = {}
    for part in parts:
        points[part.first_step] = part.first
        if part.count > 3:
            # Between its ends both extremes, at any two steps: they share a column of the screen.
            middle = (part.first_step + part.last_step) // 2
            points[middle] = part.low
            points[middle + 1] = part.high
        elif part.count > 1:
            points[part.low_step] = part.low
        points[part.last_step] = part.last
    least = min(parts, key=lambda part: part.low)
    return CurveSeen(
        points=points,
        means=tuple(part.sum / part.count for part in parts),
        first=parts[0].first,
        last=parts[-1].last,
        last_step=parts[-1].last_step,
        least=least.low,
        least_step=least.low_step,
    )
