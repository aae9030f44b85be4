"""Recognises late responses of the terminal, which look like keys."""

from __future__ import annotations

BEGINS = ("right_square_bracket", "1", "1", "semicolon")
"""The keys with which a terminal's response begins. None of them has a meaning in `top`."""
ENDS = ("backslash", "ctrl+g")
LONGEST = 40
"""At most this many keys are read as one response. A complete response has at most 28 keys. So if a
response has no end, only a few keys of the user are lost.
"""


class LateResponses:
    r"""Distinguishes pressed keys from a response of the terminal that comes late, over a slow line
    or from a busy machine.

    textual waits for the response only for a short time. After that, it reads the characters of the
    response as keys. The ESC is lost, or is read as ^:

        ESC ] 11;rgb:0000/0000/0000 ESC \   a response (xterm, "Operating System Commands")
        ^ ] 1 1 ; r g b : 0 0 0 0 / ... \   the keys: r would resume a job, / begin a filter
    """

    def __init__(self) -> None:
        self._matched = 0
        self._remaining = 0

    def consumes(self, key: str) -> bool:
        """Return whether this key, by textual's name, is part of a response. The first three keys
        of a response return False, because they have no effect in `top`. Call it once for each key,
        in order."""
        if self._remaining:
            self._remaining = 0 if key in ENDS else self._remaining - 1
            return True
        if key != BEGINS[self._matched]:
            self._matched = int(key == BEGINS[0])
            return False
        self._matched += 1
        if self._matched == len(BEGINS):
            self._matched, self._remaining = 0, LONGEST
            return True
        return False
