"""Helpers to correct text that was copied from web pages: typographic characters, and errors in
JSON.

`Mends` collects the corrections of a text; `Broken` is an error in JSON with its position and the
likely correction.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, field

DOUBLE = '"\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\uff02'
SINGLE = "'\u2018\u2019\u201a\u201b\u2032\u00b4`\uff07"
BLANKS = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
ODD = BLANKS + INVISIBLE
WIDE = {
    "\uff1a": ":",
    "\uff0c": ",",
    "\u3001": ",",
    "\uff1b": ";",
    "\uff5b": "{",
    "\uff5d": "}",
    "\uff3b": "[",
    "\uff3d": "]",
    "\u3010": "[",
    "\u3011": "]",
    "\uff08": "(",
    "\uff09": ")",
    "\uff1d": "=",
}
"""Full-width punctuation character -> the same character in ASCII."""

_NUMBERED = re.compile(r"[ \t]*(\d{1,4})(?:[.:|)]|(?=[ \t\u00a0]|$))[ \t]?")
_DOTS = re.compile(r"(?:\.{2,}|\u2026)+")


WIDEST = 76
"""The largest number of characters of a line that a message shows."""
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NO_NUMBERS = ("nan", "infinity", "inf")
_CURLY = "\u2018\u2019\u201c\u201d"


@dataclass
class Mends:
    """The corrections of a text, keyed by line number. `text` is the corrected text."""

    text: str = ""
    _notes: set[tuple[int, str]] = field(default_factory=set)

    @property
    def notes(self) -> list[tuple[int, str]]:
        """The line number and the description of each correction, in order."""
        return sorted(self._notes)

    def lines_of(self, source: str) -> tuple[str, ...]:
        """Return each correction as a line of text for users, with its position in the file
        `source`.
        """
        return tuple(f"{source}:{line}: {what}" for line, what in self.notes)

    def note(self, line: int, what: str) -> None:
        """Record a correction on line `line`, from 1; `what` describes it.

        If the same correction is made twice on a line, it is recorded once.
        """
        self._notes.add((line, what))


def is_placeholder(word: str) -> bool:
    """Return whether `word` is an ellipsis, which marks omitted text in a page."""
    return _DOTS.fullmatch(word.strip()) is not None


def placeholder_error(offset: int) -> Broken:
    """Return the error for an ellipsis at `offset`.

    An ellipsis cannot be corrected, because only the user knows the omitted text.
    """
    what = "the dots stand for settings that the page left out"
    return Broken(offset, what, "write them, or remove the dots if there is nothing to add")


def character_name(character: str) -> str:
    """Return the name of a character, for messages. Users can search for this name."""
    if character in BLANKS + INVISIBLE:
        name = unicodedata.name(character, f"U+{ord(character):04X}").lower()
        return {"no-break space": "a non-breaking space"}.get(name, f"the character {name}")
    return f"the character {character!r}"


def without_numbers(text: str, mends: Mends) -> str:
    """Return `text` without line numbers that were copied from a page.

    Consecutive numbers at the beginning of consecutive lines count as line numbers if most of these
    lines have further text. Other lines may precede and follow the numbered lines.
    """
    lines = text.split("\n")
    found = {i: m for i, line in enumerate(lines) if (m := _NUMBERED.match(line))}
    run: list[int] = []
    for i in found:
        if run and (i != run[-1] + 1 or int(found[i][1]) != int(found[run[-1]][1]) + 1):
            break
        run.append(i)
    filled = [i for i in run if lines[i][found[i].end() :].strip()]
    if len(run) < 3 or len(run) != len(found) or 2 * len(filled) < len(run):
        return text
    for i in run:
        lines[i] = lines[i][found[i].end() :]
    mends.note(run[0] + 1, f"line numbers, on {len(run)} lines")
    return "\n".join(lines)


class Broken(Exception):
    """An error in JSON at position `offset` of the text. `mend` describes the likely correction."""

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
    """Return an error message: `ds.json:7:23: error; correction`, then the line, and a mark
    under the column of the error.
    """
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
