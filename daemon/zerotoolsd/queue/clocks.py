"""Times by the calendar, and by CLOCK_MONOTONIC, which cannot be set.

CLOCK_MONOTONIC counts from the machine's boot, the same for every process, so it survives a daemon.
It stops while the machine sleeps, like the jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zerotoolsd.supervisor.procfs import boot_id

SET_SECONDS = 3600.0
"""If the calendar differs by more seconds than this from the expected time, it was set."""


class Moment(NamedTuple):
    """A time by both clocks.

    `time` is in seconds since the epoch. `clock` is in seconds of CLOCK_MONOTONIC since the boot
    `boot_id`; both are None if unknown.
    """

    time: float
    clock: float | None = None
    boot_id: str | None = None

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds since `earlier`, at least 0, also if the calendar was set
        meanwhile."""
        if self.boot_id == earlier.boot_id and None not in (self.clock, earlier.clock):
            assert self.clock is not None
            assert earlier.clock is not None
            return max(0.0, self.clock - earlier.clock)
        return max(0.0, self.time - earlier.time)


def now() -> Moment:
    """Return the current time by both clocks."""
    return Moment(time.time(), time.monotonic(), boot_id())


class RetryWaits:
    """Measures waits that are stored as calendar times by CLOCK_MONOTONIC, which cannot be set.

    The rest of a wait is computed from the calendar once, when it is first seen. `longest` limits
    it, in seconds, because the calendar may have been set while no daemon ran.
    """

    def __init__(self, longest: float, now: Callable[[], Moment] = now) -> None:
        self._longest = longest
        self._now = now
        self._due: dict[int, tuple[float | None, float]] = {}

    def left(self, job_id: int, until: float | None) -> float:
        """Return the remaining seconds of a job's wait, which is stored as the calendar time
        `until`."""
        moment = self._now()
        assert moment.clock is not None
        known = self._due.get(job_id)
        if known is None or known[0] != until:
            wait = 0.0 if until is None else until - moment.time
            wait = wait if wait <= self._longest else 0.0
            known = self._due[job_id] = (until, moment.clock + wait)
        return known[1] - moment.clock

    def over(self, job_id: int) -> None:
        """Forget the wait of the job."""
        self._due.pop(job_id, None)


class SteadyCalendar:
    """The time of day, for code that removes old data.

    A calendar that was set forward while the daemon runs counts only if the kernel reports that it
    is synchronised; else the time continues from its old value. `clock` is a clock that also runs
    while the machine sleeps.
    """

    def __init__(
        self,
        is_synchronised: Callable[[], bool | None],
        calendar: Callable[[], float] = time.time,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._is_synchronised = is_synchronised
        self._calendar = calendar
        self._clock = clock
        self._offset = calendar() - clock()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        said, steady = self._calendar(), self._clock() + self._offset
        if said - steady <= SET_SECONDS or self._is_synchronised():
            return said
        return steady


def began_of(run: Mapping[str, Any]) -> Moment | None:
    """Return the start of an attempt from its `run.json`; None if the file has no valid start."""
    began = seconds_in(run, "started")
    if began is None:
        return None
    boot, clock = run.get("boot_id"), seconds_in(run, "started_clock")
    return Moment(began, clock, boot if isinstance(boot, str) else None)


def seconds_in(tree: Mapping[str, Any] | None, name: str) -> float | None:
    """Return a time or a duration from a record; None if it is not valid. Ranks can write records,
    too."""
    value = (tree or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 2**53 and math.isfinite(value) else None
