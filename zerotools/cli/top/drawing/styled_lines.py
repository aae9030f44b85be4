"""Lines of text. A line consists of pairs of a text and a meaning, which decides the style of the
text.

A meaning is a key of `screen.colour_theme`, or empty. The text can be understood without
colours. Widths are measured as textual measures them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from zerotools.cli.output import render
from zerotools.cli.output.text_charts import BLOCKS, LETTERS, sparkline
from zerotools.cli.top.reading.gpu_holders import JOB, RESIDUE, STRANGER, GpuShare
from zerotools.sensors.snapshot import Gpu

Piece = tuple[str, str]
"""A text and its meaning, from which the terminal's style is chosen."""
Line = list[Piece]
GAP = 2
CURSOR = "cursor "
"""The meaning of text in the chosen row begins with this prefix."""
_JOINING = re.compile("[\u200c\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]")
"""Characters that change the character before them, or join two characters into one. Terminals
disagree about the width of the result.
"""
_PILED = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]{2})[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]+"
)
"""A regular expression for more than two accents on one letter, which would reach into other lines.
"""


def plain(text: object) -> str:
    """Return a text on one line. Characters that have different widths on different terminals are
    removed.
    """
    return _PILED.sub(r"\1", _JOINING.sub("", render.clean(str(text))))


def width(line: Iterable[Piece]) -> int:
    """Return the width of a line in columns."""
    return sum(cell_len(text) for text, _ in line)


def shortened(text: str, columns: int) -> str:
    """Return `text` in at most `columns` columns, with an ellipsis if it was cut."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1).rstrip() + "…" if columns > 0 else ""


def filled(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` in exactly `columns` columns."""
    short = shortened(text, columns)
    blank = " " * (columns - cell_len(short))
    return blank + short if right else short + blank


def cut(line: Iterable[Piece], columns: int) -> Line:
    """Cut a line to at most `columns` columns. The text that crosses the limit is shortened, and
    all later texts are dropped.
    """
    left, kept = columns, []
    for text, meaning in line:
        short = shortened(text, left)
        if short:
            kept.append((short, meaning))
        left -= cell_len(short)
        if short != text:
            break
    return kept


def padded(line: Iterable[Piece], columns: int) -> Line:
    """Cut or pad a line to exactly `columns` columns."""
    kept = cut(line, columns)
    blank = columns - width(kept)
    return [*kept, (" " * blank, "")] if blank > 0 else kept


def ends(left: Line, right: Line, columns: int) -> Line:
    """Return a line with `left` at its beginning and `right` at its end. If both do not fit,
    `right` is dropped.
    """
    room = columns - width(right) - GAP
    if width(left) > room and (not right or room < columns // 2):
        return padded(left, columns)
    return [*padded(left, room), ("  ", ""), *right]


def ruled(title: Line, columns: int, right: Line | None = None) -> Line:
    """Return a line with a title, a thin rule across the screen, and `right` at its end."""
    head: Line = [("── ", "rule"), *title, (" ", "")]
    tail: Line = [] if not right else [(" ", ""), *right, (" ─", "rule")]
    if width(head) + width(tail) > columns - 4:
        tail = []
    head = cut(head, columns)
    return [*head, ("─" * (columns - width(head) - width(tail)), "rule"), *tail]


def side_by_side(
    left: Sequence[Line], right: Sequence[Line], columns: int, rows: int
) -> list[Line]:
    """Return two blocks of lines next to each other, with a vertical line between the blocks. The
    left block is `columns` wide.
    """
    blank: Line = []
    return [
        [
            *padded(left[row] if row < len(left) else blank, columns),
            (" │ ", "rule"),
            *(right[row] if row < len(right) else blank),
        ]
        for row in range(rows)
    ]


def flowing(parts: Sequence[tuple[int, Line]], columns: int, rows: int) -> list[Line]:
    """Put parts one after another into at most `rows` rows. A part is a number and a line. If there
    is not enough space, the parts with the highest numbers are left out first."""
    kept = [part for part in parts if part[1]]
    while True:
        lines: list[Line] = []
        for _, part in kept:
            if lines and width(lines[-1]) + GAP + 1 + width(part) <= columns:
                lines[-1] += [("   ", ""), *part]
            else:
                lines.append(list(part))
        if len(lines) <= rows or len(kept) <= 1:
            return [cut(line, columns) for line in lines[:rows]]
        kept.remove(max(kept, key=lambda part: part[0]))


_MARKS = str.maketrans(
    dict(zip(BLOCKS, LETTERS, strict=True))
    | {"▇": "#", "▓": "%", "▚": "x", "━": "=", "╌": "-", "─": "-", "│": "|", "▸": ">", "…": "~"}
    | {"✓": "+", "°": "C", "↓": "v", "↑": "^", "·": ",", "→": ">", "×": "x", "●": "o", "▼": "v"}
)


def in_ascii(line: Line) -> Line:
    """Convert a line to ASCII. Each mark becomes a character of the same width."""
    return [(_ascii(text), meaning) for text, meaning in line]


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    return "".join(each if each.isascii() else _letter(each) for each in text.translate(_MARKS))


def _letter(character: str) -> str:
    if 0x2800 < ord(character) < 0x2900:
        return "*"
    return "?" * cell_len(character)


FREE = "free"
OWNER_MARKS = {JOB: "▇", STRANGER: "▓", RESIDUE: "▚", FREE: "╌"}
"""The marks for each kind of owner. They differ in shape as well as in colour, because some users
do not see colours.
"""


def memory_bar(gpu: Gpu, shares: Sequence[GpuShare], columns: int) -> Line:
    """Return a bar for the memory of a GPU. It has a part for each kind of owner."""
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
    """Return a thin bar for a value from 0 to 1. None means that the value is unknown."""
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
    """Return one cell with a block. The height of the block shows a value from 0 to 1."""
    if share is None:
        return " ", ""
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))], "meter"


def strip(
    values: Sequence[float | None] | None,
    columns: int,
    top: float | None = None,
    meaning: str = "strip",
) -> Line:
    """Return a sparkline of `values` in at most `columns` cells. The scale is from 0 to `top`. If
    `top` is None, it is from the smallest to the largest value.
    """
    if not values:
        return []
    return [(sparkline(values, columns, None if top is None else (0.0, top)), meaning)]


def warmth(value: float | None, warm: float, hot: float) -> str:
    """Return the style of a value that should be low: `warning` from the value `warm` on, `bad`
    from `hot` on.
    """
    if value is None or value < warm:
        return ""
    return "bad" if value >= hot else "warning"
