"""Lines of Chinese text on a terminal: a character takes two columns, and few words have spaces."""

from __future__ import annotations

import re
import unicodedata

_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\uffe0-\uffe6"
_NOT_FIRST = "，。；：？！、）》」』”’"
_PIECES = re.compile(rf"\s+|（*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_NOT_FIRST}]*")
"""The pieces that a line is not cut in: a wide character or a word, with the following
punctuation."""


def has_wide(text: str) -> bool:
    """Return whether the text has characters that take two columns."""
    return re.search(f"[{_WIDE}]", text) is not None


def columns_of(text: str) -> int:
    """Return how many columns the text takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def wrap_wide(text: str, columns: int, *, first: str, later: str) -> list[str]:
    """Cut the text into lines of at most `columns`, except a longer word: a path stays whole.

    `first` begins the first line, and `later` the others.
    """
    lines, line = list[str](), first
    for piece in _PIECES.findall(text):
        is_begun = line.strip() or (not lines and line != first)
        if is_begun and columns_of(line + piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = later
        if not (line == later and lines and piece.isspace()):
            line += piece
    return [*lines, line.rstrip()]
