"""Forecasts when the memory of the host or of a shared GPU is used up. No I/O.

The rate at which memory is used is the median of the differences between neighbouring samples. So a
single jump (a model that is allocated at once) does not count as growth, and steady growth counts
when it fills half of the window. Two windows are used: a short one for a program that takes
gigabytes a second, and a longer one for a program that leaks over minutes. The earlier of the two
results counts. The result of the longer window counts only while the growth continues.

    seconds    0     0.5   1.0   1.5   2.0   2.5
    GiB free  12.0  12.0  11.0  10.0   9.0   8.0     median 1.0 per 0.5 s: 2 GiB/s, used up in 4 s
    GiB free  12.0  12.0   8.0   8.0   8.0   8.0     median 0: a jump

The expected growth of a job is not a leak. While all expected growth still fits into the memory,
the rate is ignored. After a job has loaded, its growth during the load is ignored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

SHORT_SECONDS, LATELY_SECONDS, LONG_SECONDS = 4.0, 10.0, 60.0
_FEWEST = 4
"""Least number of differences between samples from which a rate is computed."""
_LEAST_RATE = 1 << 20
"""Rates below this number of bytes per second are ignored, because memory use varies on every
machine.
"""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The memory of the host at the monotonic time `clock`, in bytes: total, available, and the
    expected growth of running jobs.

    Attributes:
        loading: whether jobs that have done no step yet may still grow to their expected maximum.
        stalled_percent: the percentage of the last 10 s in which all tasks waited for memory at
            once (PSI, full); None: unknown.
        of_limit: whether the sample is of the daemon's control group, which has less memory than
            the host.
        reclaimed: whether the kernel reclaimed memory at a limit of that group since the previous
            sample.
        killed: whether the kernel could not reclaim enough since the previous sample, and killed
            programs.
    """

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
        """Return the fraction of the memory that is available, from 0 to 1."""
        return self.available / self.total if self.total else 1.0


def seconds_left(samples: Sequence[MemorySample], reserve: int) -> float:
    """Return the seconds until only `reserve` bytes are available, if memory is used at the
    rate of the newest samples.

    The result is infinite if the memory does not shrink, or shrinks only by expected growth
    that fits.
    """
    if not samples:
        return math.inf
    newest = samples[-1]
    if newest.coming and newest.available - newest.coming > reserve:
        return math.inf
    if not newest.loading:  # the use during loading does not predict later use
        samples = _since_loading(samples)
    slow = min(_rate(samples, LONG_SECONDS), 2 * _recent_rate(samples))
    rate = max(_rate(samples, SHORT_SECONDS), slow)
    return max(0.0, newest.available - reserve) / rate if rate >= _LEAST_RATE else math.inf


def _since_loading(samples: Sequence[MemorySample]) -> Sequence[MemorySample]:
    last = max((n for n, each in enumerate(samples) if each.loading), default=-1)
    return list(samples)[last + 1 :]


def _recent_rate(samples: Sequence[MemorySample]) -> float:
    """Return the bytes per second that were used in the last LATELY_SECONDS. The rate shows whether
    growth has stopped.
    """
    newest = samples[-1]
    since = newest.clock - LATELY_SECONDS
    first = next(each for each in samples if each.clock >= since)
    seconds = newest.clock - first.clock
    return max(0.0, (first.available - newest.available) / seconds) if seconds > 0 else 0.0


def _rate(samples: Sequence[MemorySample], window: float) -> float:
    """Return the bytes per second that were used in the last `window` seconds; 0 if unknown."""
    since = samples[-1].clock - window - 1e-6
    within = [each for each in samples if each.clock >= since]
    gaps = [(b.clock - a.clock, a.available - b.available) for a, b in pairwise(within)]
    rates = [went / seconds for seconds, went in gaps if seconds > 0]
    known = len(rates) >= _FEWEST and within[-1].clock - within[0].clock >= window / 2
    return max(0.0, median(rates)) if known else 0.0


WINDOWS = (6.0, 60.0, 600.0)
"""Lengths of the time windows over which growth is measured, in seconds."""
GAPS, _FEWEST_GPU_POINTS = 10, 4
_LATELY = {6.0: 6.0, 60.0: 10.0, 600.0: 300.0}
"""For each window length: the length of the last part of the window, in seconds. Growth counts
only if it is also found there.
"""
_SLACK = 1e-6
LEAST_RATE = 1 << 16
"""Rates below this number of bytes per second are ignored. It corresponds to a quarter of a
gigabyte in an hour.
"""

Points = Sequence[tuple[float, int]]
"""Pairs (time in seconds, bytes), in the order of time."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The memory of one GPU at the monotonic time `clock`, in bytes: the total without the driver's
    reserve, and the free memory.

    Attributes:
        held: job of this daemon -> the memory that it uses.
        promised: job -> the memory that it may use. For a job with the whole GPU, this is the
            memory that it uses now.
        known: whether the driver reports how much memory each process holds.
    """

    clock: float
    total: int
    free: int
    held: Mapping[int, int] = field(default_factory=dict)
    promised: Mapping[int, int] = field(default_factory=dict)
    known: bool = True

    @property
    def to_come(self) -> int:
        """Return the bytes that were promised to jobs and that the jobs do not hold yet."""
        return sum(map(self.to_come_of, self.promised))

    @property
    def spare(self) -> int:
        """Return the free bytes minus `to_come`. If negative, the GPU has less than its jobs were
        promised."""
        return self.free - self.to_come

    @property
    def unpromised_use(self) -> int:
        """Return the bytes that are in use without having been promised to a job."""
        used = self.total - self.free
        theirs = (min(size, self.promised.get(job, 0)) for job, size in self.held.items())
        return used - sum(theirs)

    @property
    def foreign(self) -> int:
        """Return the bytes that are in use by programs that are not jobs of this daemon."""
        return self.total - self.free - sum(self.held.values())

    def to_come_of(self, job: int) -> int:
        """Return the bytes that were promised to the job `job` and that it does not hold yet."""
        return max(0, self.promised.get(job, 0) - self.held.get(job, 0))

    def excess_of(self, job: int) -> int:
        """Return the bytes that the job `job` holds in addition to its promise."""
        return max(0, self.held.get(job, 0) - self.promised.get(job, 0))


@dataclass(frozen=True)
class GpuOutlook:
    """The forecast for one GPU: the seconds until memory runs out. Spare memory is the free memory
    that is not promised to jobs.

    The times are: until only the reserve is spare (`scarce`), until no memory is spare (`gone`),
    and until growing programs of others leave only the reserve free (`by_others`). `by_others` is
    computed from the longer window alone, because such programs may only be loading. `free` of
    `total` bytes are free; `to_come` of the free bytes are promised to jobs.
    """

    scarce: float
    gone: float
    free: int
    total: int
    to_come: int
    by_others: float = math.inf

    @property
    def spare(self) -> int:
        """Return the free bytes minus the bytes that are promised to jobs, as in `GpuSample`."""
        return self.free - self.to_come


class GpuCurve:
    """The samples of one GPU in the order of time. Forecasts are made from them."""

    def __init__(self) -> None:
        self._samples: deque[GpuSample] = deque()
        self._unpromised: deque[tuple[float, int]] = deque()
        """The memory that was taken since the first sample, in bytes, without the changes when
        a job starts or ends.

        `_foreign` has only the memory of other programs.
        """
        self._used: deque[tuple[float, int]] = deque()
        self._foreign: deque[tuple[float, int]] = deque()

    def add(self, sample: GpuSample) -> None:
        """Add a sample. It must be newer than all samples so far."""
        taken = foreign = 0
        if self._samples:
            before = self._samples[-1]
            taken, foreign = self._unpromised[-1][1], self._foreign[-1][1]
            if before.known and sample.known and before.promised.keys() == sample.promised.keys():
                taken += sample.unpromised_use - before.unpromised_use
                foreign += sample.foreign - before.foreign
        self._samples.append(sample)
        self._unpromised.append((sample.clock, taken))
        self._foreign.append((sample.clock, foreign))
        self._used.append((sample.clock, sample.total - sample.free))
        while sample.clock - self._samples[0].clock > WINDOWS[-1] + 1.0:
            for each in (self._samples, self._unpromised, self._foreign, self._used):
                each.popleft()

    @property
    def newest(self) -> GpuSample:
        """Return the newest sample. Raises IndexError if there is no sample."""
        return self._samples[-1]

    def outlook(self, reserve: int) -> GpuOutlook:
        """Return the forecast from the newest samples. `reserve` is in bytes. Raises IndexError
        if there is no sample.
        """
        newest = self.newest
        if newest.spare >= 0:
            left, rate = newest.spare, rate_of(self._unpromised)
        else:  # The promises do not fit: memory is used up when jobs have taken all free memory.
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
        """Return whether the memory use of the job `job` keeps growing."""
        points = [(each.clock, each.held[job]) for each in self._samples if job in each.held]
        return rate_of(points) >= LEAST_RATE


def _seconds(left: int, rate: float) -> float:
    return math.inf if rate < LEAST_RATE else max(0, left) / rate


def rate_of(points: Points, windows: Sequence[float] = WINDOWS) -> float:
    """Return the growth in bytes per second, the largest over any of `windows` (in seconds). Return
    0 if the memory use does not grow or the growth is unknown.
    """
    return max(_rate_between(points, window) for window in windows)


def _rate_between(points: Points, window: float) -> float:
    within = _thinned(points, window)
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(within)]
    if len(rates) < _FEWEST_GPU_POINTS or within[-1][0] - within[0][0] < window / 2:
        return 0.0
    found = median(rates) if window < WINDOWS[-1] else _rate_without_jump(within)
    return max(
        0.0, found if window == WINDOWS[0] else min(found, 2 * _recent_rate_on_gpu(points, window))
    )


def _rate_without_jump(points: Points) -> float:
    """Return the growth in bytes per second if the largest single increase is left out."""
    largest = max(0, *(after[1] - before[1] for before, after in pairwise(points)))
    return (points[-1][1] - points[0][1] - largest) / (points[-1][0] - points[0][0])


def _thinned(points: Points, window: float) -> Points:
    """Return some of the points in the last `window` seconds, in order. The points are at least a
    tenth of the window apart.
    """
    found: list[tuple[float, int]] = []
    for point in reversed(points):
        if not found:
            found.append(point)
        elif found[0][0] - point[0] > window + _SLACK:
            break
        elif found[-1][0] - point[0] >= window / GAPS - _SLACK:
            found.append(point)
    return found[::-1]


def _recent_rate_on_gpu(points: Points, window: float) -> float:
    """Return the growth in bytes per second over the last part of a window of `window` s."""
    newest = oldest = points[-1]
    for point in reversed(points):
        if newest[0] - point[0] > _LATELY[window] + _SLACK:
            break
        oldest = point
    seconds = newest[0] - oldest[0]
    return max(0.0, (newest[1] - oldest[1]) / seconds) if seconds > 0 else 0.0
