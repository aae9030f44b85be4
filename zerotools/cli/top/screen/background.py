"""The background of the terminal, light or dark: from the terminal, or from its environment.

OSC 11 requests the background (xterm, "Operating System Commands"). Terminals that do not know it
send nothing, but all answer a request for their type (DA1), which follows it: so the wait is short.
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
"""Values of TERM for terminals that would display the request."""
_ANSWER = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_END = re.compile(rb"\x1b\[\?[0-9;]*c")


def background_of(
    environment: Mapping[str, str], ask: Callable[[], bytes] | None = None
) -> str | None:
    """Return `light` or `dark`; None: unknown. `ask` returns the terminal's response."""
    if environment.get("TERM", "") not in SILENT and ask is not None:
        found = background_in(ask())
        if found is not None:
            return found
    # rxvt, Konsole: the numbers of the two colours; the last is the background.
    last = environment.get("COLORFGBG", "").rpartition(";")[2]
    if last.isdecimal():
        return LIGHT if int(last) == 7 or 9 <= int(last) <= 15 else DARK
    return None


def background_in(answer: bytes) -> str | None:
    """Return the background in the response to OSC 11."""
    found = _ANSWER.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return LIGHT if bright > 0.5 else DARK


def ask_terminal(reading: int, writing: int, seconds: float = SECONDS) -> bytes:
    """Return the response of the terminal behind two descriptors; empty if it does not respond."""
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
