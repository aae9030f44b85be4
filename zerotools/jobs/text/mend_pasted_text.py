"""Helpers to correct text that was copied from web pages: typographic characters, copied line
numbers, and ellipses.

`Mends` collects the corrections of a text.
"""

from __future__ import annotations

import re
import unicodedata
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

    def record(self, line: int, what: str) -> None:
        """Record a correction on line `line`, from 1; `what` describes it.

        If the same correction is made twice on a line, it is recorded once.
        """
        self._notes.add((line, what))


def is_placeholder(word: str) -> bool:
    """Return whether `word` is an ellipsis, which marks omitted text in a page."""
    return _DOTS.fullmatch(word.strip()) is not None


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
    mends.record(run[0] + 1, f"line numbers, on {len(run)} lines")
    return "\n".join(lines)
