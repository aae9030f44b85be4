"""Measures time with two clocks: the wall clock, and CLOCK_MONOTONIC, which nobody can set.

CLOCK_MONOTONIC counts from the boot of the machine and is the same for all processes, so a time
that an earlier daemon read is still valid. The clock stops while the machine sleeps, as jobs do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zerotoolsd.supervisor.procfs import boot_id

SET_SECONDS = 3600.0
"""If the wall clock differs from the expected time by more than this many seconds, it was set."""


class Moment(NamedTuple):
    """A point in time on two clocks.

    `time` is the wall clock in seconds since the epoch. `clock` is the time of CLOCK_MONOTONIC in
    seconds, measured in the boot of the machine that `boot_id` identifies. `clock` and `boot_id`
    are None if unknown.
    """

    time: float
    clock: float | None = None
    boot_id: str | None = None

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds from `earlier` to this moment, at least 0, even if the wall clock was
        set meanwhile.
        """
        if self.boot_id == earlier.boot_id and None not in (self.clock, earlier.clock):
            assert self.clock is not None
            assert earlier.clock is not None
            return max(0.0, self.clock - earlier.clock)
        return max(0.0, self.time - earlier.time)


def read_clocks() -> Moment:
    """Return the current time on both clocks."""
    return Moment(time.time(), time.monotonic(), boot_id())


class RetryWaits:
    """Measures how long jobs must still wait before they are started again.

    The end of a wait is stored in seconds since the epoch, but the remaining seconds are measured
    with CLOCK_MONOTONIC, which nobody can set. When a wait is seen for the first time, its
    remaining time is computed from the wall clock. If the result is more than `longest` seconds,
    the clock was set back while no daemon ran, and the wait is over.
    """

    def __init__(self, longest: float, now: Callable[[], Moment] = read_clocks) -> None:
        self._longest = longest
        self._now = now
        self._due: dict[int, tuple[float | None, float]] = {}

    def seconds_left(self, job_id: int, until: float | None) -> float:
        """Return the seconds that the job must still wait. `until` is the stored end of the
        wait, in seconds since the epoch.
        """
        moment = self._now()
        assert moment.clock is not None
        known = self._due.get(job_id)
        if known is None or known[0] != until:
            wait = 0.0 if until is None else until - moment.time
            wait = wait if wait <= self._longest else 0.0
            known = self._due[job_id] = (until, moment.clock + wait)
        return known[1] - moment.clock

    def forget(self, job_id: int) -> None:
        """Forget the wait of the job, because it is over."""
        self._due.pop(job_id, None)


class SteadyCalendar:
    """The current time of the wall clock, for code that removes old data.

    If the wall clock is set forward by more than SET_SECONDS while the daemon runs, the new time is
    used only if the kernel reports that the clock is synchronised. Otherwise this object ignores
    the change. `clock` must also run while the machine sleeps.
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
        """Return the current time in seconds since the epoch."""
        said, steady = self._calendar(), self._clock() + self._offset
        if said - steady <= SET_SECONDS or self._is_synchronised():
            return said
        return steady


def began_of(run: Mapping[str, Any]) -> Moment | None:
    """Return the start time of an attempt. `run` has the contents of its `run.json`; return None if
    they contain no valid time.
    """
    began = seconds_in(run, "started")
    if began is None:
        return None
    boot, clock = run.get("boot_id"), seconds_in(run, "started_clock")
    return Moment(began, clock, boot if isinstance(boot, str) else None)


def seconds_in(tree: Mapping[str, Any] | None, name: str) -> float | None:
    """Return the value of `name` in the record `tree`, a time or duration in seconds; None if it is
    missing or invalid.

    Ranks can write into records, so the value in `tree` may have any type.
    """
    value = (tree or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 2**53 and math.isfinite(value) else None
