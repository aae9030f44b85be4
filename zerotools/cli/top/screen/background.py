"""Whether the terminal is light or dark: it is asked, or its environment is.

OSC 11 asks for the background (xterm, "Operating System Commands"). Terminals that do not know it
say nothing, but all answer what they are (DA1), which is asked behind it: so nobody waits for long.
"""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from collections.abc import Callable, Mapping
from contextlib import suppress

from zerotools.cli.top.screen.palette import DARK, LIGHT

QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
SECONDS = 0.6
SILENT = ("dumb", "linux", "unknown", "")
"""Values of TERM whose terminals would show the question."""
_ANSWER = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_END = re.compile(rb"\x1b\[\?[0-9;]*c")


def background_of(
    environment: Mapping[str, str], ask: Callable[[], bytes] | None = None
) -> str | None:
    """`light` or `dark`; None: nobody says. `ask` returns what the terminal answers."""
    if environment.get("TERM", "") not in SILENT and ask is not None:
        found = background_in(ask())
        if found is not None:
            return found
    # rxvt, Konsole: the numbers of the two colours, of which the last is the background.
    last = environment.get("COLORFGBG", "").rpartition(";")[2]
    if last.isdecimal():
        return LIGHT if int(last) == 7 or 9 <= int(last) <= 15 else DARK
    return None


def background_in(answer: bytes) -> str | None:
    """What the answer to OSC 11 says."""
    found = _ANSWER.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return LIGHT if bright > 0.5 else DARK


def ask_terminal(reading: int, writing: int, seconds: float = SECONDS) -> bytes:
    """What the terminal behind two descriptors answers; nothing where it does not."""
    try:
        before = termios.tcgetattr(reading)
    except termios.error:
        return b""
    said = b""
    try:
        tty.setcbreak(reading, termios.TCSANOW)
        os.write(writing, QUESTION)
        until = time.monotonic() + seconds
        while not _END.search(said):
            left = until - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                break
            part = os.read(reading, 1024)
            said += part
            if not part:
                break
    finally:
        with suppress(termios.error):  # it was closed meanwhile
            termios.tcsetattr(reading, termios.TCSANOW, before)
    return said
