"""The style of each meaning for the background of the terminal, light or dark.

On a light background the colours are darker, because the terminal's own green and yellow may be
hard to read there.
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

from rich.style import Style

from zerotools.cli.top.drawing.styled_lines import CURSOR

LIGHT, DARK = "light", "dark"
_SHAPES = {
    "strong": "bold",
    "key": "bold",
    "quiet": "dim",
    "title": "dim",
    "rule": "dim",
    "free": "dim",
    "track": "dim",
    "bad": "bold",
}
"""The styles that are also used without colours."""
_OWN = {
    "key": "bold cyan",
    "job": "green",
    "stranger": "yellow",
    "residue": "red",
    "meter": "cyan",
    "strip": "cyan",
    "curve": "cyan",
    "busy": "cyan",
    "evals": "magenta",
    "late": "yellow",
    "warning": "yellow",
    "good": "green",
    "bad": "bold red",
}
_ON_LIGHT = {
    "key": "bold color(24)",
    "job": "color(28)",
    "stranger": "color(130)",
    "residue": "color(124)",
    "meter": "color(24)",
    "strip": "color(24)",
    "curve": "color(24)",
    "busy": "color(24)",
    "evals": "color(90)",
    "late": "color(130)",
    "warning": "color(130)",
    "good": "color(28)",
    "bad": "bold color(124)",
}
"""Colours from xterm's palette of 256. Their contrast on white is at least 4.5 to 1 (WCAG 2,
success criterion 1.4.3).
"""

_BEHIND = {DARK: "bold on color(237)", LIGHT: "bold on color(254)"}
"""The style of the row under the cursor, by background. If the background is unknown, the colours
of the row are reversed.
"""

Styles = Mapping[str, Style]


def styles_of(background: str | None, *, colours: bool) -> Styles:
    """Return the style of each meaning. `background` is `light`, `dark`, or None if it is
    unknown.
    """
    chosen = _ON_LIGHT if background == LIGHT else _OWN
    words = {"": "", **dict.fromkeys(_OWN, ""), **_SHAPES, **(chosen if colours else {})}
    styles = {meaning: Style.parse(text) for meaning, text in words.items()}
    behind = _BEHIND.get(background or "") if colours else None
    for meaning, style in list(styles.items()):
        # Readable background colours are known only for a known background.
        on = style + Style.parse(behind) if behind else Style.parse("reverse")
        styles[f"{CURSOR}{meaning}"] = on
    return styles


QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
SECONDS = 0.6
SILENT = ("dumb", "linux", "unknown", "")
"""Values of the variable TERM for terminals that would print the request as text."""
_ANSWER = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_END = re.compile(rb"\x1b\[\?[0-9;]*c")


def background_of(
    environment: Mapping[str, str], ask: Callable[[], bytes] | None = None
) -> str | None:
    """Return the background of the terminal, `light` or `dark`, or None if it is unknown. `ask`
    requests it from the terminal and returns the response.
    """
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
    """Return the background in a response to OSC 11: `light` or `dark`. Return None if `answer` is
    not such a response.
    """
    found = _ANSWER.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return LIGHT if bright > 0.5 else DARK


def ask_terminal(reading: int, writing: int, seconds: float = SECONDS) -> bytes:
    """Ask the terminal for its background (OSC 11). Return the response; empty if none came.

    `reading` and `writing` are file descriptors of the terminal. A terminal that does not know OSC
    11 does not answer it. So a second request follows, for the type of the terminal (DA1). Every
    terminal answers DA1, so the wait is short. Source: xterm, "Operating System Commands".
    """
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
        with suppress(termios.error):  # the terminal was closed meanwhile
            termios.tcsetattr(reading, termios.TCSANOW, before)
    return said
