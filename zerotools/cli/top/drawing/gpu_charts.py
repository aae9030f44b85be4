"""Two charts over time of all GPUs together: their utilisation, and their memory."""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.cli.output.text_charts import area
from zerotools.cli.top.drawing.styled_lines import Line, cut, padded
from zerotools.cli.top.reading.read_screen_values import ScreenData

ROWS = 6
"""The rows of the charts, with their titles."""
_BETWEEN = "   "


def gpu_charts(data: ScreenData, columns: int) -> list[Line]:
    """Return the two charts next to each other, in `ROWS` rows; empty if no past values are
    known."""
    busy, used = list[Sequence[float | None]](), list[Sequence[float | None]]()
    for gpu in data.snapshot.gpus:
        if series := data.past.get(f"gpu.{gpu.uuid}.utilization_percent"):
            busy.append(series)
        held, total = data.past.get(f"gpu.{gpu.uuid}.memory_used_bytes"), gpu.memory_total_bytes
        if held and total:
            used.append([None if value is None else 100 * value / total for value in held])
    wide = (columns - len(_BETWEEN)) // 2
    blocks = [
        block
        for word, rows in (("busy", busy), ("memory", used))
        if (block := _chart(word, _means(rows), len(rows), wide, is_hour=data.is_hour))
    ]
    return [
        [piece for block in blocks for piece in (*padded(block[row], wide), (_BETWEEN, ""))][:-1]
        for row in range(ROWS if blocks else 0)
    ]


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of all rows at each time. All rows end at the same time."""
    found: list[float | None] = []
    for back in range(1, 1 + max(map(len, rows), default=0)):
        known = [value for row in rows if len(row) >= back and (value := row[-back]) is not None]
        found.append(sum(known) / len(known) if known else None)
    return found[::-1]


def _chart(
    word: str, values: Sequence[float | None], count: int, columns: int, *, is_hour: bool
) -> list[Line]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    span = "the last hour" if is_hour else "since the start"
    of = "" if count == 1 else f", mean of {count} GPUs"
    title: Line = [(f"{word} ", "strong"), (f"{known[-1]:.0f}%", "curve")]
    title.append((f"{of}, {span}, at most {max(known):.0f}%", "quiet"))
    labels = ["100%", *[""] * (ROWS - 3), "0%"]
    drawn = area(values, columns - 6, ROWS - 1, 100.0)
    rows: list[Line] = [
        [(f"{label:>4} ", "quiet"), ("│", "rule"), (text, "strip")]
        for label, text in zip(labels, drawn, strict=True)
    ]
    return [cut(title, columns), *rows]
