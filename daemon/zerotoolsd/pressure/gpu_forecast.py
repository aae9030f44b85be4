"""How soon the memory of a GPU is gone that several share: pure.

A job takes what it declared, and its CUDA context, whenever it likes: that is no leak, however fast
it goes. What counts is what nobody was promised ("taken"): what jobs hold beyond that, and what
programs hold that are not ours. Of the rest, what is still to come of the jobs is kept for them.

    GiB of 80                              free    to come    spare    taken
    job 1 has 10 of its 30, job 2 its 20    50       20        30        0
    job 1 has loaded                        30        0        30        0     no leak
    job 2 holds 5 more than it declared     25        0        25        5     one, if it goes on

An allocator takes memory in steps of 2 or 20 MiB, or of a gigabyte, and keeps it: a step up to a
plateau is no slope, and a slow leak is a stair. So the rate is the median of what was taken in ten
gaps of the same length, in two windows; and in a third, of ten minutes, what was taken in all but
the largest step: a second step is needed there for a stair. 20 MiB once a minute, 1 GiB in an hour,
show so. The longer windows count as far as it still goes on.

When a job starts or ends on the GPU, or nobody knows who holds what, that gap counts for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

WINDOWS = (6.0, 60.0, 600.0)
"""Seconds."""
GAPS, _FEWEST = 10, 4
_LATELY = {6.0: 6.0, 60.0: 10.0, 600.0: 300.0}
"""Seconds at the end of each window in which it must go on."""
_SLACK = 1e-6
LEAST_RATE = 1 << 16
"""Bytes per second: a quarter of a gigabyte in an hour."""

Points = Sequence[tuple[float, int]]
"""(seconds, bytes), in order."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Bytes of one GPU at `clock` (seconds, monotonic): what there is in all beside what the driver
    keeps, and what is free. `held` is what jobs of ours hold of it, by job, and `promised` what
    each of them may; a job that has the GPU for itself may hold what it does. `known`: the driver
    says who holds what."""

    clock: float
    total: int
    free: int
    held: Mapping[int, int] = field(default_factory=dict)
    promised: Mapping[int, int] = field(default_factory=dict)
    known: bool = True

    @property
    def to_come(self) -> int:
        """What jobs do not hold yet of what they were promised."""
        return sum(map(self.to_come_of, self.promised))

    @property
    def spare(self) -> int:
        """What is free beside that; below 0: it does not fit."""
        return self.free - self.to_come

    @property
    def taken(self) -> int:
        """What is held that nobody was promised."""
        used = self.total - self.free
        theirs = (min(size, self.promised.get(job, 0)) for job, size in self.held.items())
        return used - sum(theirs)

    @property
    def foreign(self) -> int:
        """What no job of ours holds."""
        return self.total - self.free - sum(self.held.values())

    def to_come_of(self, job: int) -> int:
        """What one of them does not hold yet."""
        return max(0, self.promised.get(job, 0) - self.held.get(job, 0))

    def over(self, job: int) -> int:
        """What the job holds beyond what it was promised."""
        return max(0, self.held.get(job, 0) - self.promised.get(job, 0))


@dataclass(frozen=True)
class GpuOutlook:
    """In seconds, as it goes: until no more than the reserve is spare, until nothing is, and until
    programs that are not ours have brought it to the reserve: that by the second window alone, as
    any of them may load something, or two things. `free` of `total` bytes are free, of which
    `to_come` are promised."""

    scarce: float
    gone: float
    free: int
    total: int
    to_come: int
    by_others: float = math.inf

    @property
    def spare(self) -> int:
        """As of `GpuSample`."""
        return self.free - self.to_come


class GpuCurve:
    """The samples of one GPU, in order."""

    def __init__(self) -> None:
        self._samples: deque[GpuSample] = deque()
        self._taken: deque[tuple[float, int]] = deque()
        """What was taken since the first sample, without what came with the start or the end of a
        job; `_foreign` of others alone."""
        self._used: deque[tuple[float, int]] = deque()
        self._foreign: deque[tuple[float, int]] = deque()

    def add(self, sample: GpuSample) -> None:
        """One that is newer than all others."""
        taken = foreign = 0
        if self._samples:
            before = self._samples[-1]
            taken, foreign = self._taken[-1][1], self._foreign[-1][1]
            if before.known and sample.known and before.promised.keys() == sample.promised.keys():
                taken += sample.taken - before.taken
                foreign += sample.foreign - before.foreign
        self._samples.append(sample)
        self._taken.append((sample.clock, taken))
        self._foreign.append((sample.clock, foreign))
        self._used.append((sample.clock, sample.total - sample.free))
        while sample.clock - self._samples[0].clock > WINDOWS[-1] + 1.0:
            for each in (self._samples, self._taken, self._foreign, self._used):
                each.popleft()

    @property
    def newest(self) -> GpuSample:
        """The last one that was added. Raises IndexError: there is none."""
        return self._samples[-1]

    def outlook(self, reserve: int) -> GpuOutlook:
        """By the newest samples. Raises IndexError: there is none."""
        newest = self.newest
        if newest.spare >= 0:
            left, rate = newest.spare, rate_of(self._taken)
        else:  # What is to come does not fit: it is gone when jobs have taken all that is free.
            left, rate = newest.free, rate_of(self._used)
        others = rate_of(self._foreign, WINDOWS[1:2])
        return GpuOutlook(
            scarce=_seconds(left - reserve, rate),
            gone=_seconds(left, rate),
            free=newest.free,
            total=newest.total,
            to_come=newest.to_come,
            by_others=_seconds(newest.spare - reserve, others),
        )

    def grows(self, job: int) -> bool:
        """Whether the job takes more and more."""
        points = [(each.clock, each.held[job]) for each in self._samples if job in each.held]
        return rate_of(points) >= LEAST_RATE


def _seconds(left: int, rate: float) -> float:
    return math.inf if rate < LEAST_RATE else max(0, left) / rate


def rate_of(points: Points, windows: Sequence[float] = WINDOWS) -> float:
    """Bytes per second by which it grows; 0: it does not, or that is not known."""
    return max(_rate(points, window) for window in windows)


def _rate(points: Points, window: float) -> float:
    within = _thinned(points, window)
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(within)]
    if len(rates) < _FEWEST or within[-1][0] - within[0][0] < window / 2:
        return 0.0
    found = median(rates) if window < WINDOWS[-1] else _stair(within)
    return max(0.0, found if window == WINDOWS[0] else min(found, 2 * _lately(points, window)))


def _stair(points: Points) -> float:
    """Bytes per second in all but the largest step."""
    largest = max(0, *(after[1] - before[1] for before, after in pairwise(points)))
    return (points[-1][1] - points[0][1] - largest) / (points[-1][0] - points[0][0])


def _thinned(points: Points, window: float) -> Points:
    """The newest of the window, and others at least a tenth of it apart, in order."""
    found: list[tuple[float, int]] = []
    for point in reversed(points):
        if not found:
            found.append(point)
        elif found[0][0] - point[0] > window + _SLACK:
            break
        elif found[-1][0] - point[0] >= window / GAPS - _SLACK:
            found.append(point)
    return found[::-1]


def _lately(points: Points, window: float) -> float:
    """Bytes per second in the last part of a window in all."""
    newest = oldest = points[-1]
    for point in reversed(points):
        if newest[0] - point[0] > _LATELY[window] + _SLACK:
            break
        oldest = point
    seconds = newest[0] - oldest[0]
    return max(0.0, (newest[1] - oldest[1]) / seconds) if seconds > 0 else 0.0
