"""The current host memory, and its use by running jobs, for the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from zerotoolsd.monitoring.history_recorder import host_memory
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.declared_memory import HostNow
from zerotoolsd.resources.gpu_sharing.measured_use import Owner

AGE_SECONDS, SPARED = 2.0, 50.0
"""Reading all processes takes 10 ms, and much more on a large server. So a measurement is kept for
this time, and for this multiple of its duration. Growth of a job since then counts as expected
growth."""


class HostMemoryUse:
    """`live` gives the running attempts."""

    def __init__(
        self,
        live: Callable[[], Sequence[AttemptRow]],
        available: Callable[[], int],
        measure: Callable[[Sequence[AttemptRow]], Mapping[Owner, int]] = host_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._available, self._measure = live, available, measure
        self._clock = clock
        self._due = float("-inf")
        self._newest = HostNow(0)

    def read(self) -> HostNow:
        """Return the state, measured a short time ago."""
        begun = self._clock()
        if begun > self._due:
            held = self._measure(self._live())
            of_jobs = {job: size for (job, _), size in held.items()}
            self._newest = HostNow(self._available(), of_jobs)
            now = self._clock()
            self._due = now + max(AGE_SECONDS, SPARED * (now - begun))
        return self._newest
