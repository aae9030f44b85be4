"""Curves as text: a chart of braille characters (two by four dots in each) or of letters, and a
sparkline, which takes one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

ROWS = 12
FEWEST_ROWS = 4
NARROWEST = 20
FRAME = 2
"""The number of lines of a chart in addition to its rows: the title and the steps."""
ROWS_APART, COLUMNS_APART = 4, 20
"""The rows between labels of values, and the columns between labels of steps, are about as many."""
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character: `_DOTS[row][column]`."""

NumberFormat = Callable[[float], str]
SeriesPoints = Mapping[int, float]
Paint = Callable[[str], str]


def _plain(text: str) -> str:
    return text


@dataclass(frozen=True)
class Series:
    """One curve of a chart: its values by step.

    If the chart cannot use braille, `mark` draws its points. `paint` colours the points. With
    `is_joined`, lines connect the points.
    """

    points: SeriesPoints
    mark: str = "*"
    paint: Paint = _plain
    is_joined: bool = True


@dataclass(frozen=True)
class ChartGrid:
    """A chart without colours.

    `labels` are the texts before the rows, all of the same width. A cell has a character and the
    index of its curve in the series; an empty cell has None as the index. `steps` is the line below
    the chart.
    """

    labels: Sequence[str]
    cells: Sequence[Sequence[tuple[str, int | None]]]
    steps: str

    def lines(self, series: Sequence[Series], edge: str, quiet: Paint = _plain) -> list[str]:
        """Return the rows with their labels, in the colours of the curves `series`. `edge` is the
        character between a label and its row, and `quiet` paints both.
        """
        found = []
        for label, cells in zip(self.labels, self.cells, strict=True):
            row = "".join(
                text if number is None else series[number].paint(text) for text, number in cells
            )
            found.append(f"{quiet(f'{label} {edge}')}{row}".rstrip())
        return found

    @property
    def axis(self) -> str:
        """The line with the steps, below the rows."""
        return f"{'':{len(self.labels[0]) + 2}}{self.steps}"


def chart_grid(
    series: Sequence[Series],
    form: NumberFormat,
    *,
    columns: int,
    braille: bool,
    least: float | None = None,
    rows: int = ROWS,
    steps: tuple[int, int] | None = None,
    label_columns: int = 0,
) -> ChartGrid | None:
    """Return a chart of the curves `series` by step, at most `columns` wide; None if no curve has
    points.

    Later curves are drawn over earlier ones. If a column stands for several steps, it shows the
    range of their values.

    Args:
        form: converts a value to text.
        least: the lower end of the axis, unless a value is smaller.
        steps: the first and the last step of the chart (None: those of the curves).
        label_columns: the minimum width of the labels.
    """
    values = [value for each in series for value in each.points.values()]
    if not values:
        return None
    first, last = steps or step_range(series)
    low, high = min(values), max(values)
    low = low if least is None else min(low, least)
    labels = _value_labels((low, high), rows, form)
    margin = max(label_columns, *map(len, labels)) + 2
    width = max(NARROWEST, columns - margin - 1)
    cells: list[list[tuple[str, int | None]]] = [[(" ", None)] * width for _ in range(rows)]
    for number, each in enumerate(series):
        across, down = (2, 4) if braille else (1, 1)
        canvas = _Canvas(width * across, rows * down)
        canvas.draw(each, (first, last), (low, high))
        lines = canvas.braille() if braille else canvas.stars(each.mark)
        for row, line in enumerate(lines):
            for column, character in enumerate(line):
                if character != " ":
                    cells[row][column] = (character, number)
    axis = _step_labels((first, last), width)
    return ChartGrid([f"{text:>{margin - 1}}" for text in labels], cells, axis)


def _value_labels(values: tuple[float, float], rows: int, form: NumberFormat) -> list[str]:
    """Return the label of each row: the ends of the axis, and round values between the ends. A
    label that is wider than both ends is left out.
    """
    low, high = values
    labels = [form(high), *[""] * (rows - 2), form(low)]
    widest = max(map(len, labels))
    for value in _round_values(low, high, (rows - 1) // ROWS_APART):
        row = round((high - value) / (high - low) * (rows - 1))
        if 2 <= row <= rows - 3 and len(text := form(value)) <= widest:
            labels[row] = text
    return labels


def _step_labels(steps: tuple[int, int], width: int) -> str:
    """Return the line below a chart: the first and the last step, and round steps between them."""
    first, last = steps
    line = f"step {first}"
    room = width - len(str(last))
    for value in _round_values(first, last, width // COLUMNS_APART):
        text = f"{value:.0f}"
        begin = round((value - first) / (last - first) * (width - 1)) - len(text) // 2
        if value == int(value) and len(line) + 3 <= begin and begin + len(text) + 3 <= room:
            line += " " * (begin - len(line)) + text
    return line + " " * max(1, room - len(line)) + str(last)


def _round_values(low: float, high: float, count: int) -> list[float]:
    """Return about `count` values between `low` and `high` that are multiples of 1, 2, 2.5 or 5
    times a power of ten.
    """
    span = high - low
    if count < 2 or not 0 < span / count < math.inf:
        return []
    power = 10.0 ** math.floor(math.log10(span / count))
    apart = next(
        (each * power for each in (1, 2, 2.5, 5) if each * power * count >= span), 10 * power
    )
    if not apart or not math.isfinite(low / apart):
        return []
    begin = math.ceil(low / apart)
    return [each * apart for each in range(begin, begin + count + 1) if each * apart < high]


def step_range(series: Sequence[Series]) -> tuple[int, int]:
    """Return the first and the last step of all curves. At least one curve has points."""
    steps = [step for each in series for step in each.points]
    return min(steps), max(steps)


class _Canvas:
    """A grid of dots on which curves are drawn. The lower left dot is (0, 0)."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._dots: set[tuple[int, int]] = set()

    def draw(self, series: Series, steps: tuple[int, int], values: tuple[float, float]) -> None:
        """Draw a curve. `steps` is the range of the horizontal axis, and `values` the range of the
        vertical axis.
        """
        points = series.points
        (first, last), (low, high) = steps, values
        across, up = (self._width - 1) / max(1, last - first), self._height - 1
        column = before = -1
        least = most = 0
        for step in sorted(points):
            x = round((step - first) * across)
            # Halves first: the difference of two large numbers may be too large.
            share = (points[step] / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
            y = round(share * up)
            if x == column:  # points in one column: all dots between them
                least, most = min(least, y), max(most, y)
            else:
                self._dots.update((column, dot) for dot in range(least, most + 1) if column >= 0)
                if series.is_joined and column >= 0:
                    self._line((column, before), (x, y))
                column, least, most = x, y, y
            before = y
        self._dots.update((column, dot) for dot in range(least, most + 1) if column >= 0)

    def _line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        (x0, y0), (x1, y1) = start, end
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        for n in range(count + 1):
            self._dots.add((x0 + round((x1 - x0) * n / count), y0 + round((y1 - y0) * n / count)))

    def stars(self, mark: str) -> list[str]:
        """Return the rows, the top row first, with one character for each dot."""
        rows = reversed(range(self._height))
        return [
            "".join(mark if (x, y) in self._dots else " " for x in range(self._width)) for y in rows
        ]

    def braille(self) -> list[str]:
        """Return the rows, the top row first, with one braille character for two by four dots."""
        bits = [[0] * (self._width // 2) for _ in range(self._height // 4)]
        for x, y in self._dots:
            row = self._height - 1 - y
            bits[row // 4][x // 2] |= _DOTS[row % 4][x % 2]
        return ["".join(chr(_BRAILLE + b) if b else " " for b in row) for row in bits]


BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-~=+*#"
"""Marks of a sparkline for terminals that cannot show `BLOCKS`."""
RESTING_SECONDS = 20
"""A daemon that runs no job measures twice in this many seconds."""


def sparkline(
    values: Sequence[float | None],
    width: int,
    bounds: tuple[float, float] | None = None,
    marks: str = BLOCKS,
) -> str:
    """Return `values` as one line of at most `width` marks. Each mark shows the average of a part
    of the values. It is blank if all values of the part are unknown.

    `bounds` are the values of the lowest and the highest mark (None: the smallest and the largest
    average).
    """
    if not values or width < 1:
        return ""
    means = _means(values, min(width, len(values)))
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * len(means)
    low, high = bounds or (min(known), max(known))
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else marks[_at((mean - low) * scale)] for mean in means)


def area(values: Sequence[float | None], width: int, rows: int, top: float) -> list[str]:
    """Return `values` as a filled curve from 0 to `top`, in rows of `width` characters, the top row
    first. Unknown values are blank.
    """
    if not values or width < 1:
        return [" " * max(0, width)] * rows
    parts = min(width, len(values))
    means = _means(values, parts)
    steps = len(BLOCKS)
    eighths = [
        0 if mean is None else max(1, min(rows * steps, round(mean / top * rows * steps)))
        for mean in (means[column * parts // width] for column in range(width))
    ]
    return [
        "".join(" " if each <= low else BLOCKS[min(each - low, steps) - 1] for each in eighths)
        for low in range((rows - 1) * steps, -1, -steps)
    ]


def _means(values: Sequence[float | None], parts: int) -> list[float | None]:
    edges = [index * len(values) // parts for index in range(parts + 1)]
    return [_mean(values[a:b]) for a, b in pairwise(edges)]


def _at(value: float) -> int:
    return max(0, min(len(BLOCKS) - 1, round(value)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def means_over_time(
    times: Sequence[int],
    values: Sequence[float | None],
    seconds: int,
    cells: int,
    step_seconds: int,
) -> list[float | None]:
    """Return the averages of `values` over the last `seconds` before the end of `times`, in `cells`
    equal parts of this time.

    A part without a measurement gets the average of the part before it. After a gap longer than an
    idle daemon's pause between two measurements, a part gets None.
    """
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
