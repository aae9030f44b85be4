"""Numbers, durations and sizes as text of few columns."""

from __future__ import annotations

from collections.abc import Iterable

from zerotools.cli.output import render

_UNITS = ("B", "K", "M", "G", "T", "P")


def brief(seconds: float | None) -> str:
    """Return a duration in at most six columns: `14s`, `3m20s`, `2h05m`, `4d03h`; `-` for None."""
    days = 0 if seconds is None else round(seconds) // 86400
    if days < 100:
        return render.duration(seconds).replace(" min", "m").replace(" ", "")
    return f"{days}d" if days < 1000 else ">999d"


def ago(seconds: float) -> str:
    """Return a time in the past in one unit: `4 min ago`."""
    whole = max(0, round(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= length:
            return f"{whole // length} {unit} ago"
    return f"{whole} s ago"


def size(count: float | None) -> str:
    """Return a size in at most five columns, in binary units: `980B`, `1.2G`, `812G`; `-` for
    None.
    """
    if count is None:
        return render.UNKNOWN
    value, unit = float(count), 0
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f}{_UNITS[unit]}" if value >= 9.95 or unit == 0 else f"{value:.1f}{_UNITS[unit]}"
    )


def used_of(used: float | None, total: float | None) -> str:
    """Return used and total bytes in GiB: `61.2/80G`."""
    whole = render.UNKNOWN if total is None else f"{total / 2**30:.0f}"
    return f"{render.gib(used)}/{whole}G"


def thousands(count: float) -> str:
    """Return a number in at most five columns: `980`, `15.3k`, `1.2M`."""
    for unit in ("", "k", "M", "G"):
        if abs(count) < 999.5:
            return f"{count:.0f}{unit}" if not unit or abs(count) >= 99.95 else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.0f}T"


def unit(value: float | None, name: str) -> str:
    """Return a value as a whole number with its unit; `-` for None."""
    return render.UNKNOWN if value is None else f"{value:.0f}{name}"


def in_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text with ranges: `0-3,5`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
