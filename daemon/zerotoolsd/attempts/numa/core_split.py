"""The cores of a node, cut among those that share it. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def core_share(
    cpus: frozenset[int], cores: Iterable[frozenset[int]], place: int, sharers: int
) -> frozenset[int]:
    """Return the part of `cpus` for the `place`th (from 0) of `sharers`.

    The part consists of whole cores with all threads, and of neighbours, which share a cache. If
    there are fewer cores than sharers, each gets all of them.
    """
    usable = sorted((core & cpus for core in cores if core & cpus), key=min)
    if len(usable) < sharers:
        return cpus
    begin, end = (len(usable) * at // sharers for at in (place, place + 1))
    return frozenset[int]().union(*usable[begin:end])
