"""How soon the host's memory is gone: pure.

The rate is the median of what went between neighbouring samples, so that a step (a model that was
allocated at once) is no slope, and a ramp is one as soon as it fills half of the window. There are
two windows, for a program that takes gigabytes a second and for one that leaks over minutes; the
sooner end counts; the longer one only as far as it still goes on.

    seconds    0     0.5   1.0   1.5   2.0   2.5
    GiB       12.0  12.0  11.0  10.0   9.0   8.0     median 1.0 each 0.5 s: 2 GiB/s, gone in 4 s
    GiB       12.0  12.0   8.0   8.0   8.0   8.0     median 0: a step

What a job takes that was expected of it is no leak: as long as all that is expected still fits, the
slope says nothing; nor does that of the time in which jobs loaded, once they have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SHORT_SECONDS, LATELY_SECONDS, LONG_SECONDS = 4.0, 10.0, 60.0
_FEWEST = 4
"""Gaps between samples from which a rate is known."""
_LEAST_RATE = 1 << 20
"""Bytes per second: less goes and comes on every machine."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes of the host at `clock` (seconds, monotonic): what there is in all, what programs may
    still take, and what running jobs are still expected to take of that. `loading`: jobs that have
    not taken a step yet may take more, up to the most that is expected of them. `stalled_percent`:
    of the last 10 s, all tasks at once waited for memory (PSI, full); None: not known. `of_limit`:
    it is that of the daemon's control group, which has less than the host. Since the sample before,
    the kernel took memory back at a limit of that group (`reclaimed`), or could not and ended
    programs (`killed`)."""

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
        """Which part of the memory is available."""
        return self.available / self.total if self.total else 1.0


def seconds_left(samples: Sequence[MemorySample], reserve: int) -> float:
    """Until no more than `reserve` is available, if it goes on as in the newest samples; inf: it
    does not shrink, or only by what is expected and fits."""
    if not samples:
        return math.inf
    newest = samples[-1]
    if newest.coming and newest.available - newest.coming > reserve:
        return math.inf
    if not newest.loading:  # what went while jobs loaded says nothing of what goes since
        samples = _since_loading(samples)
    slow = min(_rate(samples, LONG_SECONDS), 2 * _lately(samples))
    rate = max(_rate(samples, SHORT_SECONDS), slow)
    return max(0.0, newest.available - reserve) / rate if rate >= _LEAST_RATE else math.inf


def _since_loading(samples: Sequence[MemorySample]) -> Sequence[MemorySample]:
    last = max((n for n, each in enumerate(samples) if each.loading), default=-1)
    return list(samples)[last + 1 :]


def _lately(samples: Sequence[MemorySample]) -> float:
    """Bytes per second that went in the last LATELY_SECONDS in all: a ramp that has ended is none
    any more."""
    newest = samples[-1]
    since = newest.clock - LATELY_SECONDS
    first = next(each for each in samples if each.clock >= since)
    seconds = newest.clock - first.clock
    return max(0.0, (first.available - newest.available) / seconds) if seconds > 0 else 0.0


def _rate(samples: Sequence[MemorySample], window: float) -> float:
    """Bytes per second that went; 0 where that is not known."""
    since = samples[-1].clock - window - 1e-6
    within = [each for each in samples if each.clock >= since]
    gaps = [(b.clock - a.clock, a.available - b.available) for a, b in pairwise(within)]
    rates = [went / seconds for seconds, went in gaps if seconds > 0]
    known = len(rates) >= _FEWEST and within[-1].clock - within[0].clock >= window / 2
    return max(0.0, median(rates)) if known else 0.0
