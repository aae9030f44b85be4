"""Forecasts when the host's memory is used up: pure.

The rate is the median of the differences between neighbouring samples. So a step (a model allocated
at once) is not a slope, and a ramp is one when it fills half of the window. Two windows are used,
for a program that takes gigabytes a second and for one that leaks over minutes. The sooner end
counts; the longer window counts only while the growth continues.

    seconds    0     0.5   1.0   1.5   2.0   2.5
    GiB       12.0  12.0  11.0  10.0   9.0   8.0     median 1.0 each 0.5 s: 2 GiB/s, gone in 4 s
    GiB       12.0  12.0   8.0   8.0   8.0   8.0     median 0: a step

The expected growth of a job is not a leak: while all expected growth still fits, the slope does not
count. The slope of loading does not count after the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SHORT_SECONDS, LATELY_SECONDS, LONG_SECONDS = 4.0, 10.0, 60.0
_FEWEST = 4
"""Number of gaps between samples for a valid rate."""
_LEAST_RATE = 1 << 20
"""Bytes per second: less goes and comes on every machine."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes of the host at `clock` (seconds, monotonic): the total, the available part, and the
    expected growth of running jobs. `loading`: jobs without a step so far may still grow to their
    expected maximum. `stalled_percent`: in the last 10 s, all tasks waited for memory at once (PSI,
    full); None: unknown. `of_limit`: the sample is of the daemon's control group, which has less
    than the host. Since the previous sample, the kernel reclaimed memory at a limit of that group
    (`reclaimed`), or could not and killed programs (`killed`)."""

    clock: float
    total: int
    available: int
    coming: int = 0
    loading: bool = False
    stalled_percent: float | None = None
    of_limit: bool = False
    reclaimed: bool = False
    killed: bool = False

    @property
    def part(self) -> float:
        """The available part of the memory."""
        return self.available / self.total if self.total else 1.0


def seconds_left(samples: Sequence[MemorySample], reserve: int) -> float:
    """Return the seconds until only `reserve` is available, at the rate of the newest samples.

    The result is inf if memory does not shrink, or shrinks by expected amounts that fit.
    """
    if not samples:
        return math.inf
    newest = samples[-1]
    if newest.coming and newest.available - newest.coming > reserve:
        return math.inf
    if not newest.loading:  # the use during loading does not predict later use
        samples = _since_loading(samples)
    slow = min(_rate(samples, LONG_SECONDS), 2 * _lately(samples))
    rate = max(_rate(samples, SHORT_SECONDS), slow)
    return max(0.0, newest.available - reserve) / rate if rate >= _LEAST_RATE else math.inf


def _since_loading(samples: Sequence[MemorySample]) -> Sequence[MemorySample]:
    last = max((n for n, each in enumerate(samples) if each.loading), default=-1)
    return list(samples)[last + 1 :]


def _lately(samples: Sequence[MemorySample]) -> float:
    """Return the bytes per second over the last LATELY_SECONDS: an ended ramp does not count."""
    newest = samples[-1]
    since = newest.clock - LATELY_SECONDS
    first = next(each for each in samples if each.clock >= since)
    seconds = newest.clock - first.clock
    return max(0.0, (first.available - newest.available) / seconds) if seconds > 0 else 0.0


def _rate(samples: Sequence[MemorySample], window: float) -> float:
    """Return the bytes per second that were used; 0 if unknown."""
    since = samples[-1].clock - window - 1e-6
    within = [each for each in samples if each.clock >= since]
    gaps = [(b.clock - a.clock, a.available - b.available) for a, b in pairwise(within)]
    rates = [went / seconds for seconds, went in gaps if seconds > 0]
    known = len(rates) >= _FEWEST and within[-1].clock - within[0].clock >= window / 2
    return max(0.0, median(rates)) if known else 0.0
