"""The cores of a node, cut among those that share it. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def core_share(
    cpus: frozenset[int], cores: Iterable[frozenset[int]], place: int, sharers: int
) -> frozenset[int]:
    """The part of `cpus` that the `place`th (from 0) of `sharers` has for itself: whole cores, with
    all of their threads, and neighbours, which share a cache. Where there are fewer cores than
    sharers, all of them have all."""
    usable = sorted((core & cpus for core in cores if core & cpus), key=min)
    if len(usable) < sharers:
        return cpus
    begin, end = (len(usable) * at // sharers for at in (place, place + 1))
    return frozenset[int]().union(*usable[begin:end])
