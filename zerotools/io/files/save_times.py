"""Write times of files: a file that was not written with the others may be of another save."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

_HOUR = 3600.0
_DAY = 24 * _HOUR
_SPREADS = 20
"""A slow save takes long: a gap of this many times the span of all other files is not part of
it."""


def written_apart(times: Mapping[str, float]) -> str | None:
    """Return a sentence on files that were written long before or after the others, or None.
    `times` are those of the last change by name, in seconds since 1970; 0: not known."""
    ordered = sorted((time, name) for name, time in times.items() if time > 0)
    if len(ordered) < 2:
        return None
    gap, at = max((b[0] - a[0], n) for n, (a, b) in enumerate(pairwise(ordered), 1))
    before, after = ordered[:at], ordered[at:]
    few, most = (before, after) if len(before) <= len(after) else (after, before)
    if gap <= max(_HOUR, _SPREADS * (most[-1][0] - most[0][0])):
        return None
    names = ", ".join(name for _, name in few[:3]) + (
        f" and {len(few) - 3} more" if len(few) > 3 else ""
    )
    how = "before" if few is before else "after"
    long = f"{gap / _DAY:.1f} days" if gap > 2 * _DAY else f"{gap / _HOUR:.1f} hours"
    return (
        f"{names}: written {long} {how} the other files; they are from another save, unless files "
        "were copied one by one"
    )
