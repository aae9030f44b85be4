"""Converts numbers of processors and memory nodes to and from the lists of the kernel: `0-3,8`.

Source: cpuset(7), "List format".
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 2**16
"""A number that is larger than the number of any processor or memory node."""


def cpu_list(numbers: Iterable[int]) -> str:
    """Return the numbers as a list in the kernel's form; the empty string for no numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def numbers_in(text: str) -> frozenset[int]:
    """Return the numbers in a list in the kernel's form. Raises ValueError if the text is not such
    a list.
    """
    found: set[int] = set()
    for part in text.split(","):
        if not part.strip():
            continue
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not 0 <= begin <= end < MOST:
            raise ValueError(f"{part!r} is not a range of numbers below {MOST}")
        found.update(range(begin, end + 1))
    return frozenset(found)
