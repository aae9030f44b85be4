"""A curve of any length in a bounded number of parts.

A job of a million steps reports a million losses, and a screen has a few hundred columns. So steps
are kept in parts of equal length, of each its least, its greatest and the sum of its values; if the
parts become too many, each two of them become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerotools.cli.output.braille_chart import SeriesPoints

MOST_PARTS = 600
STEADY = 300
"""A curve is redrawn only if it has grown by this part (1/300)."""


@dataclass(frozen=True, eq=False)
class CurveShape:
    """The drawn values of a curve: `points` in a chart, `means` of the parts in a line."""

    points: SeriesPoints = field(default_factory=dict)
    means: tuple[float, ...] = ()


NO_SHAPE = CurveShape()


@dataclass(frozen=True)
class CurveSeen:
    """A curve at one moment. Its `shape` may be slightly older, and is the same object until it
    changes, so that drawings of it can be kept. The numbers are current, None without a point;
    `least_step` is the step of the least."""

    shape: CurveShape = NO_SHAPE
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
        self._count = 0
        self._shape = NO_SHAPE
        self._shaped_at = 0

    def put(self, step: int, value: float) -> None:
        """Add a point. A step that is there is not taken twice; see `cut`."""
        new = _Part(step, value, step, value, value, step, value, value, 1)
        old = self._parts.setdefault(step // self._length, new)
        if old is not new:
            if step <= old.last_step:
                return
            old.join(new)
        self._count += 1
        while len(self._parts) > self._most:
            self._halve()

    def cut(self, step: int) -> None:
        """Forget all from `step` on; a part that begins before it stays."""
        for place in [place for place in self._parts if place * self._length >= step]:
            del self._parts[place]
            self._shaped_at = -1

    def seen(self) -> CurveSeen:
        """Return the curve now."""
        if not self._parts:
            return CurveSeen()
        parts = list(self._parts.values())
        if self._shaped_at < 0 or self._count - self._shaped_at > self._count // STEADY:
            self._shape, self._shaped_at = _shape_of(parts), self._count
        least = min(parts, key=lambda part: part.low)
        return CurveSeen(
            shape=self._shape,
            first=parts[0].first,
            last=parts[-1].last,
            last_step=parts[-1].last_step,
            least=least.low,
            least_step=least.low_step,
        )

    def _halve(self) -> None:
        self._length *= 2
        parts, self._parts = self._parts, {}
        for part in parts.values():
            old = self._parts.setdefault(part.first_step // self._length, part)
            if old is not part:
                old.join(part)


def _shape_of(parts: list[_Part]) -> CurveShape:
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
    return CurveShape(points, tuple(part.sum / part.count for part in parts))
