"""Colour, on a terminal that supports it: one word for each meaning, and one module with escapes.

A stream gets colour if it is a terminal, `NO_COLOR` is unset or empty (https://no-color.org) and
`TERM` is not `dumb`. Colour repeats the text and never adds to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

_RESET = "\x1b[0m"
_CODES = {
    "error": "\x1b[1;31m",
    "bad": "\x1b[31m",
    "warning": "\x1b[33m",
    "good": "\x1b[32m",
    "busy": "\x1b[36m",
    "quiet": "\x1b[2m",
    "strong": "\x1b[1m",
}


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether escapes may be written to `stream`."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def paint(text: str, meaning: str, stream: TextIO) -> str:
    """Return `text` in the colour of `meaning`, where `stream` wants it; spaces around it stay
    plain."""
    bare = text.strip()
    if not bare or not wants_colour(stream):
        return text
    return text.replace(bare, f"{_CODES[meaning]}{bare}{_RESET}", 1)
