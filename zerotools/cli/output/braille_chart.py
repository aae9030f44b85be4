"""Curves as text: dots of braille characters, two by four in each, else a letter for each dot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROWS = 12
FEWEST_ROWS = 4
NARROWEST = 20
FRAME = 2
"""Lines of a chart besides its rows: the title and the steps."""
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot, by row and column within a character."""

NumberFormat = Callable[[float], str]
SeriesPoints = Mapping[int, float]
Paint = Callable[[str], str]


def _plain(text: str) -> str:
    return text


@dataclass(frozen=True)
class Series:
    """A curve of a chart: values by step; `mark` draws it where there are no colours, and `paint`
    colours it."""

    points: SeriesPoints
    mark: str = "*"
    paint: Paint = _plain


def chart(
    title: str,
    series: Sequence[Series],
    form: NumberFormat,
    *,
    columns: int,
    braille: bool,
    least: float | None = None,
    rows: int = ROWS,
) -> list[str]:
    """Lines of a chart of `series` by step, at most `columns` wide; `form` writes a value.
    The lower edge is `least`, or the smallest value. Later curves are drawn over earlier ones.

    Where a column stands for several steps it shows all that lies between the least and the
    greatest of their values.
    """
    drawn = [each for each in series if each.points]
    if not drawn:
        return [f"{title}: nothing was reported"]
    values = [value for each in drawn for value in each.points.values()]
    steps = [step for each in drawn for step in each.points]
    low, high = min(values), max(values)
    low = low if least is None else min(low, least)
    labels = [form(high), form(low)]
    margin = max(map(len, labels)) + 2
    width = max(NARROWEST, columns - margin - 1)
    cells: list[list[str]] = [[" "] * width for _ in range(rows)]
    for each in drawn:
        across, down = (2, 4) if braille else (1, 1)
        canvas = _Canvas(width * across, rows * down)
        canvas.draw(each.points, (min(steps), max(steps)), (low, high))
        lines = canvas.braille() if braille else canvas.stars(each.mark)
        for row, line in enumerate(lines):
            for column, character in enumerate(line):
                if character != " ":
                    cells[row][column] = each.paint(character)
    edge = "│" if braille else "|"
    texts = [labels[0], *[""] * (rows - 2), labels[1]]
    shown = [title]
    shown += [
        f"{text:>{margin - 1}} {edge}{''.join(row)}".rstrip()
        for text, row in zip(texts, cells, strict=True)
    ]
    first, last = f"step {min(steps)}", str(max(steps))
    gap = " " * max(1, width - len(first) - len(last))
    return [*shown, f"{'':{margin}} {first}{gap}{last}"]


class _Canvas:
    """Dots, the lower left one at (0, 0)."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._dots: set[tuple[int, int]] = set()

    def draw(
        self, points: SeriesPoints, steps: tuple[int, int], values: tuple[float, float]
    ) -> None:
        """The curve, where the edges are the first and last of `steps` and of `values`."""
        (first, last), (low, high) = steps, values
        before: tuple[int, int] | None = None
        for step in sorted(points):
            x = round((step - first) * (self._width - 1) / max(1, last - first))
            # Halves first: the difference of two large numbers may be too large.
            share = (points[step] / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
            y = round(share * (self._height - 1))
            self._line(before or (x, y), (x, y))
            before = (x, y)

    def _line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        (x0, y0), (x1, y1) = start, end
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        for n in range(count + 1):
            self._dots.add((x0 + round((x1 - x0) * n / count), y0 + round((y1 - y0) * n / count)))

    def stars(self, mark: str) -> list[str]:
        """One character for each dot, the top row first."""
        rows = reversed(range(self._height))
        return [
            "".join(mark if (x, y) in self._dots else " " for x in range(self._width)) for y in rows
        ]

    def braille(self) -> list[str]:
        """One character for each two by four dots, the top row first."""
        bits = [[0] * (self._width // 2) for _ in range(self._height // 4)]
        for x, y in self._dots:
            row = self._height - 1 - y
            bits[row // 4][x // 2] |= _DOTS[row % 4][x % 2]
        return ["".join(chr(_BRAILLE + b) if b else " " for b in row) for row in bits]
