"""Ranges and conditions of a request, as RFC 9110 (HTTP semantics) has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class NotSatisfiable(Exception):
    """The range begins behind the end of the file: status 416."""


@dataclass(frozen=True, slots=True)
class WantedBytes:
    """Bytes [begin, end) of a file; `is_part` means that a range was requested."""

    begin: int
    end: int
    is_part: bool = False


def wanted_of(header: str | None, size: int) -> WantedBytes:
    """Return the bytes that a `Range` requests of a file of `size` bytes. Several ranges, other
    units and invalid ranges are ignored, as section 14.2 allows: then it is the whole file.

    Raises:
        NotSatisfiable: no byte of it lies in the file.
    """
    match = _RANGE.fullmatch((header or "").replace(" ", ""))
    first, last = match.groups() if match else ("", "")
    if not first and not last:
        return WantedBytes(0, size)
    if not first:  # the last so many bytes
        if int(last) == 0 or size == 0:
            raise NotSatisfiable
        return WantedBytes(max(0, size - int(last)), size, is_part=True)
    begin, end = int(first), size if not last else min(size, int(last) + 1)
    if last and int(last) < begin:
        return WantedBytes(0, size)
    if begin >= size:
        raise NotSatisfiable
    return WantedBytes(begin, end, is_part=True)


def matches(header: str | None, etag: str) -> bool:
    """Return whether a list of ETags (`If-None-Match`, `If-Match`) has this one, or any (`*`)."""
    if header is None:
        return False
    listed = [each.strip().removeprefix("W/") for each in header.split(",")]
    return "*" in listed or etag in listed
