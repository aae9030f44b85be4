"""Truncates an example that is too long: the prompt is cut first, and the end stays.

Ids are only moved, so their marks stay with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Limits:
    """The most tokens of source and target together, and of each separately; None: no limit."""

    whole: int | None = None
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Kept:
    """The parts that stay when an example is cut: the first `head` ids of the source, and of its
    rest the first ones or (`keeps_first` False) the last; the last `end` ids of the target."""

    head: int = 0
    end: int = 0
    keeps_first: bool = True


def cut(source: Ids, target: Ids, limits: Limits, kept: Kept) -> tuple[Ids, Ids]:
    """Return (source, target) within `limits`: at least one token of a source stays."""
    target = _cut_target(target, limits.target, kept)
    source = _cut_source(source, limits.source, kept)
    if limits.whole is not None and len(source) + len(target) > limits.whole:
        source = _cut_source(source, max(1, limits.whole - len(target)), kept)
        target = _cut_target(target, limits.whole - len(source), kept)
    return source, target


def _cut_source(ids: Ids, most: int | None, kept: Kept) -> Ids:
    if most is None or len(ids) <= most:
        return ids
    if kept.keeps_first:
        return ids[:most]
    head = min(kept.head, most - 1)
    return np.concatenate([ids[:head], ids[len(ids) - (most - head) :]])


def _cut_target(ids: Ids, most: int | None, kept: Kept) -> Ids:
    if most is None or len(ids) <= most:
        return ids
    end = min(kept.end, most)
    return np.concatenate([ids[: most - end], ids[len(ids) - kept.end :][:end]])
