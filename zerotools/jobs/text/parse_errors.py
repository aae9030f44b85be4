"""Describe errors in JSON and YAML for users: the position, the line, and the likely correction.

`Broken` is an error at a position of the text, and `correction_message` makes its message.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right

WIDEST = 76
"""The largest number of characters of a line that a message shows."""
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NO_NUMBERS = ("nan", "infinity", "inf")
_CURLY = "\u2018\u2019\u201c\u201d"


def placeholder_error(offset: int) -> Broken:
    """Return the error for an ellipsis at `offset`.

    An ellipsis cannot be corrected, because only the user knows the omitted text.
    """
    what = "the dots stand for settings that the page left out"
    return Broken(offset, what, "write them, or remove the dots if there is nothing to add")


class Broken(Exception):
    """An error in JSON or YAML at position `offset` of the text. `mend` describes the likely
    correction.
    """

    def __init__(self, offset: int, what: str, mend: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what
        self.mend = mend


def bad_word(offset: int, word: str) -> Broken:
    """Return the error for a word that is neither a number nor true, false or null."""
    short = word if len(word) <= 40 else f"{word[:37]}..."
    if word[0] in "'`":
        return Broken(offset, "JSON has no single quotes", 'write "..." instead')
    if word[0] == "=":
        return Broken(offset, "JSON has no =", "write : between a key and its value")
    if word.endswith(";"):
        return Broken(offset + len(word) - 1, "JSON has no semicolons", "write a comma, or nothing")
    if word[0] in _CURLY:
        return Broken(offset, "these are typographic quotes", 'write straight ones, "..."')
    if word.lower().lstrip("+-") in _NO_NUMBERS:
        return Broken(offset, f"{short} is not a JSON number", "write a finite number")
    if re.match(r"[+-]?[.0-9]", word):
        return Broken(offset, f"{short} is not a JSON number", _number(word))
    close = difflib.get_close_matches(short.lower(), _WORDS, n=1, cutoff=0.75)
    if close:
        return Broken(offset, f"{short} is not JSON", f"write {_WORDS[close[0]]}")
    return Broken(offset, f"{short} stands without quotes", f'write "{short}"')


def _number(word: str) -> str:
    try:
        value = float(word)
    except ValueError:
        return "write digits, a point and an exponent at most, such as 5e8"
    return f"write {value:.17g}"


def bad_string(text: str, offset: int) -> Broken:
    """Return the error for an invalid string that begins at `offset`."""
    at = offset + 1
    while at < len(text):
        if text[at] == "\n":
            return Broken(offset, "this string is not closed on its line", 'add "')
        if text[at] == "\\":
            if not re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}').match(text, at + 1):
                return Broken(at, "this backslash begins no escape", "write \\\\")
            at += 1
        elif text[at] == '"' or text[at] < " ":
            break
        at += 1
    if at >= len(text):
        return Broken(offset, "this string is never closed", 'add "')
    return Broken(at, f"the character {text[at]!r} cannot stand in a string", "remove it")


class LineIndex:
    """Converts positions in a text to line and column numbers."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def number(self, offset: int) -> int:
        """Return the number of the line that contains position `offset`, from 1."""
        return bisect_right(self._starts, offset)

    def column(self, offset: int) -> int:
        """Return the column of position `offset` in its line, from 1."""
        return offset - self._starts[self.number(offset) - 1] + 1

    def indent(self, number: int) -> int:
        """Return the number of spaces and tabs at the beginning of line `number`."""
        start = self._starts[number - 1]
        blank = re.compile("[ \t]*").match(self._text, start)
        return blank.end() - start if blank else 0

    def line(self, number: int) -> str:
        """Return the text of line `number` without its line end."""
        start = self._starts[number - 1]
        end = self._text.find("\n", start)
        return self._text[start : end if end >= 0 else None].rstrip("\r")


def correction_message(
    source: str, lines: LineIndex, broken: Broken, language: str = "JSON", further: str = ""
) -> str:
    """Return an error message: `ds.json:7:23: is not valid JSON: error; correction`, then the line,
    and a mark under the column of the error."""
    line, column = lines.number(broken.offset), lines.column(broken.offset)
    shown, caret = _window(lines.line(line), column - 1)
    number = f"{line:>6} | "
    mark = " " * (len(number) - 2) + "| " + " " * caret + "^"
    head = f"{source}:{line}:{column}: is not valid {language}: {broken.what}"
    return f"{head}; {broken.mend}{further}\n{number}{shown}\n{mark}"


def _window(line: str, at: int) -> tuple[str, int]:
    """Return a part of `line` that contains column `at` and is short enough for a message, and
    the position of the column in this part.
    """
    start = 0 if len(line) <= WIDEST else max(0, min(at - WIDEST // 2, len(line) - WIDEST))
    part = "".join(c if c.isprintable() else " " for c in line[start : start + WIDEST])
    return part, at - start
