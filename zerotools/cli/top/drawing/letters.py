"""For terminals that show letters alone: each mark becomes one, of the same width."""

from __future__ import annotations

from rich.cells import cell_len

from zerotools.cli.output.sparkline import BLOCKS, LETTERS
from zerotools.cli.top.drawing.styled_lines import Line

_MARKS = str.maketrans(
    dict(zip(BLOCKS, LETTERS, strict=True))
    | {"▇": "#", "▓": "%", "▚": "x", "━": "=", "╌": "-", "─": "-", "│": "|", "▸": ">", "…": "~"}
    | {"✓": "+", "°": "C", "↓": "v", "↑": "^", "·": ",", "→": ">", "×": "x", "●": "o", "▼": "v"}
)


def in_letters(line: Line) -> Line:
    """Return the same line in ASCII."""
    return [(_ascii(text), meaning) for text, meaning in line]


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    return "".join(each if each.isascii() else _letter(each) for each in text.translate(_MARKS))


def _letter(character: str) -> str:
    if 0x2800 < ord(character) < 0x2900:
        return "*"
    return "?" * cell_len(character)
