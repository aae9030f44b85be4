"""Parse durations as people write them (`90`, `"90m"`, `"1d12h"`), and format durations as text."""

from __future__ import annotations

import re

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TEXT = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
LONGEST_SECONDS = 3650 * 86400


def seconds_of(span: int | str) -> int:
    """Return a duration in seconds.

    The argument is a number of seconds, or a string with days, hours, minutes and seconds in this
    order, such as `"1d12h"`.

    Raises:
        ValueError: the argument is not a duration, is 0, or is longer than ten years.
    """
    if isinstance(span, int):
        seconds = span
    else:
        match = _TEXT.fullmatch(span.replace(" ", ""))
        parts = match.groups() if match else ()
        seconds = sum(
            int(number) * unit
            for number, unit in zip(parts, _SECONDS.values(), strict=False)
            if number
        )
    if seconds < 1:
        raise ValueError('must be a number of seconds, or a time such as "1d12h" or "90m"')
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"must be at most {LONGEST_SECONDS // 86400} days")
    return seconds


def duration_text(seconds: int) -> str:
    """Return a duration as text in days, hours, minutes and seconds: `2 h`, `1 d 12 h`, `1 min 30
    s`."""
    parts = []
    for unit, length in _SECONDS.items():
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit if unit != 'm' else 'min'}")
    return " ".join(parts)
