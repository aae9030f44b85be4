"""Colours of a terminal: a colour for each meaning, such as `warning`. Only this module has escape
codes.

A stream gets colour if it is a terminal, `NO_COLOR` is unset or empty (https://no-color.org) and
`TERM` is not `dumb`. The option `--color` of zerotools overrides this rule. The text is complete
without colours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


AUTO, ALWAYS, NEVER = "auto", "always", "never"
CHOICES = (AUTO, ALWAYS, NEVER)
_choices = [AUTO]


@contextmanager
def colour_choice(choice: str) -> Iterator[None]:
    """Within the `with` block, let `choice`, one of `CHOICES`, decide whether output
    has colours.
    """
    _choices.append(choice)
    try:
        yield
    finally:
        _choices.pop()


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether escape codes may be written to `stream`."""
    if _choices[-1] != AUTO:
        return _choices[-1] == ALWAYS
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def paint(text: str, meaning: str, stream: TextIO) -> str:
    """Return `text` in the colour of `meaning` if `stream` wants colour. Spaces around the text
    stay uncoloured.
    """
    bare = text.strip()
    if not bare or not wants_colour(stream):
        return text
    return text.replace(bare, f"{_CODES[meaning]}{bare}{_RESET}", 1)
