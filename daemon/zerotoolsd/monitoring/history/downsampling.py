"""Aggregates samples with age: pure.

A bucket has the mean of each series, and the maximum, because a peak of a second ends a job. Coarse
buckets are made of finer ones from the file, so a daemon killed in between loses none:

    second     60  61  62 ...  69        one row each, kept for an hour
    10 s       60 ------------ 69        mean of the means, most of the mosts; kept for a day
    60 s       60 ---------------- 119   of the rows of 10 s; kept for 30 days
    10 min                               of those of 60 s; kept for a year
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

HOUR, DAY = 3600, 86400


@dataclass(frozen=True)
class Tier:
    """Buckets of `step_seconds` that are kept for `span_seconds`."""

    step_seconds: int
    span_seconds: int


TIERS = (Tier(1, HOUR), Tier(10, DAY), Tier(60, 30 * DAY), Tier(600, 365 * DAY))


@dataclass(frozen=True, slots=True)
class MeanAndMost:
    """One series within one bucket."""

    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The measurements from `start` (whole seconds since the epoch) on, by series."""

    start: int
    series: Mapping[str, MeanAndMost]


def bucket_of(time: float, series: Mapping[str, float]) -> Bucket:
    """Return one sample as a bucket of the finest tier. NaN and infinities are left out."""
    known = {name: value for name, value in series.items() if math.isfinite(value)}
    return Bucket(int(time), {name: MeanAndMost(value, value) for name, value in known.items()})


def combined(start: int, buckets: Sequence[Bucket]) -> Bucket:
    """Combine all `buckets` into one; a series that some of them lack is made from the others."""
    found: dict[str, list[MeanAndMost]] = {}
    for bucket in buckets:
        for name, each in bucket.series.items():
            found.setdefault(name, []).append(each)
    ranges = {
        name: MeanAndMost(sum(r.mean for r in parts) / len(parts), max(r.most for r in parts))
        for name, parts in found.items()
    }
    return Bucket(start, ranges)


def rolled_up(buckets: Iterable[Bucket], step_seconds: int) -> list[Bucket]:
    """Aggregate `buckets`, in order of time, into coarser ones."""
    grouped = groupby(buckets, lambda bucket: bucket.start // step_seconds * step_seconds)
    return [combined(start, list(parts)) for start, parts in grouped]


def tier_for(span_seconds: float, most_points: int) -> int:
    """Return the coarsest of TIERS with `most_points` in the last `span_seconds`.

    It must reach back that far. So a result is made of at most ten times its points.
    """
    reach = [n for n, tier in enumerate(TIERS) if span_seconds <= tier.span_seconds]
    enough = [n for n in reach if TIERS[n].step_seconds * most_points <= span_seconds]
    return enough[-1] if enough else reach[0] if reach else len(TIERS) - 1


def step_for(tier: Tier, span_seconds: float, most_points: int) -> int:
    """Return the length of a bucket, a multiple of the tier's step, for at most `most_points`."""
    return tier.step_seconds * max(1, math.ceil(span_seconds / tier.step_seconds / most_points))
