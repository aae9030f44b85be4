"""Answers of the terminal that come late, over a slow line or from a busy machine.

The question for the background waits for a moment (`background`). An answer that comes after it is
read by textual, which takes it for keys, with or without ^ for ESC:

    ESC ] 11;rgb:0000/0000/0000 ESC \\   an answer (xterm, "Operating System Commands")
    ^ ] 1 1 ; r g b : 0 0 0 0 / ... \\   what arrives: r would resume a job, / begin a filter
"""

from __future__ import annotations

BEGINS = ("right_square_bracket", "1", "1", "semicolon")
"""They do nothing by themselves."""
ENDS = ("backslash", "ctrl+g")
LONGEST = 40
"""The limit in keys. The longest response has 28, so a truncated one does not consume more of the
user's input."""


class LateAnswers:
    """Distinguishes the keys of a response from pressed ones."""

    def __init__(self) -> None:
        self._begun = 0
        self._left = 0

    def takes(self, key: str) -> bool:
        """Return whether this key, by textual's name, is part of a response. Each is passed once,
        in order."""
        if self._left:
            self._left = 0 if key in ENDS else self._left - 1
            return True
        if key != BEGINS[self._begun]:
            self._begun = int(key == BEGINS[0])
            return False
        self._begun += 1
        if self._begun == len(BEGINS):
            self._begun, self._left = 0, LONGEST
            return True
        return False
