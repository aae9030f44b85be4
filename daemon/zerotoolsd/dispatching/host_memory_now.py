"""The host's memory as it is now, and what of it jobs that run hold, for the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from zerotools.sensors.host import HostSensor
from zerotoolsd.gpu_sharing.measured_use import Owner
from zerotoolsd.history.job_memory import host_memory
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.declared import HostNow

AGE_SECONDS = 2.0
"""A look at all processes takes some 10 ms, and several passes may come at once. What a job took
since is still counted as what it is to take."""


class HostMemoryNow:
    """`live` gives the attempts that run."""

    def __init__(
        self,
        live: Callable[[], Sequence[AttemptRow]],
        available: Callable[[], int] = lambda: HostSensor().read().memory_available_bytes,
        measure: Callable[[Sequence[AttemptRow]], Mapping[Owner, int]] = host_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._available, self._measure = live, available, measure
        self._clock = clock
        self._taken = float("-inf")
        self._newest = HostNow(0)

    def read(self) -> HostNow:
        """As it was at most AGE_SECONDS ago."""
        if self._clock() - self._taken > AGE_SECONDS:
            held = self._measure(self._live())
            of_jobs = {job: size for (job, _), size in held.items()}
            self._newest = HostNow(self._available(), of_jobs)
            self._taken = self._clock()
        return self._newest
