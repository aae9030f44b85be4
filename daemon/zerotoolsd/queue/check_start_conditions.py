"""Checks the start conditions of waiting jobs (a time, dependencies), and queues a job when all its
conditions are met.

The module follows the events of the store. A job is checked only when it begins to wait, when a job
that it depends on changes, and when its start time has come.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotoolsd.queue import fault_isolation
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.lifecycle import LifecycleEvent, PutOnHold, Ready
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.tables.dependency_table import DependencyRow, how_it_ended

LOOK_SECONDS = 0.01
"""Waiting jobs are checked for at most this many seconds before other tasks of the event loop
run.
"""
_AT_ONCE = 100
_MOST_SAID = 3
"""Largest number of jobs that a reason names. A job may wait for an array of a thousand jobs."""


def why_it_waits(begin: float | None, after: Sequence[DependencyRow], now: float) -> str | None:
    """Return a sentence that names the start conditions that are not met yet; None if all are met.

    `begin` is the earliest start of the job, `after` are its dependencies, and `now` is the current
    time.
    """
    said = []
    if begin is not None and begin > now:
        said.append(f"starts at {local_time_text(begin)} at the earliest")
    open_ones = [each.words for each in after if not each.is_met]
    if open_ones:
        more = len(open_ones) - _MOST_SAID
        listed = open_ones[:_MOST_SAID] + ([count_text(more, "more job")] if more > 0 else [])
        said.append(f"waits for {', and for '.join(listed)}")
    return "; ".join(said) or None


def why_spoiled(after: Sequence[DependencyRow]) -> str | None:
    """Return the reason why the job can never start, because one of its dependencies can no longer
    be met. Return None if the job can still start.
    """
    for each in after:
        if each.is_spoiled:
            how = how_it_ended(each.state)
            return f"it may start only after job {each.on_id} succeeds, but that job {how}"
    return None


def local_time_text(when: float) -> str:
    """Return the time `when` (seconds since the epoch) as text in the machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when)).strip()


class WaitingConditions:
    """Finds the jobs of a store that wait for start conditions. `calendar` returns the current time
    in seconds since the epoch.
    """

    def __init__(
        self, transitions: StateChanger, guard: JobGuard, calendar: Callable[[], float]
    ) -> None:
        self._transitions = transitions
        self._store = transitions.store
        self._guard = guard
        self._calendar = calendar
        self._waiting: dict[int, float | None] = {}
        """The waiting jobs, each with its earliest start."""
        self._times: list[tuple[float, int]] = []
        """The start times of jobs, the earliest first. Some of these jobs may no longer wait."""
        self._seen: int | None = None
        self._unread: dict[int, None] = {}
        """Jobs that must be read again, because they may wait now or no longer wait."""
        self._due: set[int] = set()
        """Jobs that must be checked in the next call of `settle`."""

    def waits(self, job: JobRow) -> bool:
        """Return whether the job has a start condition that is not met now."""
        after = self._store.dependencies.of(job.id)
        return self.is_early(job) or any(not each.is_met for each in after)

    def is_early(self, job: JobRow) -> bool:
        """Return whether the earliest start of the job is still in the future."""
        return job.begin is not None and job.begin > self._calendar()

    def settle(self, seconds: float = LOOK_SECONDS) -> float | None:
        """Queue each waiting job if all of its start conditions are met. Put it on hold if one can
        never be met. Work for at most `seconds`.

        Return the seconds until the next call is due; None if no job waits for a time. Raises
        sqlite3.OperationalError if the database cannot be changed now.
        """
        now, deadline = self._calendar(), time.monotonic() + seconds
        self._note_changes()
        while self._unread and time.monotonic() < deadline:
            part = list(self._unread)[:_AT_ONCE]
            for job_id in part:
                self._note(job_id)
            self._due |= {*part, *self._store.dependencies.dependents(part)}
            for job_id in part:
                del self._unread[job_id]
        while self._times and self._times[0][0] <= now:
            self._due.add(heapq.heappop(self._times)[1])
        for job_id in sorted(self._due):
            if time.monotonic() > deadline:
                break
            if job_id in self._waiting:
                with self._guard.guard(job_id, fault_isolation.WAITING_FOR) as reach:
                    reach()
                    self._check_job(job_id, now)
            self._due.discard(job_id)
        if self._unread or self._due:
            return 0.0
        return self._times[0][0] - now if self._times else None

    def _check_job(self, job_id: int, now: float) -> None:
        begin, after = self._waiting[job_id], self._store.dependencies.of(job_id)
        event: LifecycleEvent
        if (why := why_spoiled(after)) is not None:
            event = PutOnHold(why=f"{why}; to start it anyway: zerotools release {job_id}")
        elif all(each.is_met for each in after) and (begin is None or begin <= now):
            event = Ready()
        else:
            return
        self._transitions.apply(self._store.job(job_id), event)
        del self._waiting[job_id]

    def _note_changes(self) -> None:
        newest = self._store.last_change
        changed = None if self._seen is None else self._store.changed_since(self._seen)
        if changed is None:
            self._waiting.clear()
            self._times.clear()
            changed = self._store.ids(states.WAITING)
        self._unread |= dict.fromkeys(changed)
        self._seen = newest

    def _note(self, job_id: int) -> None:
        self._waiting.pop(job_id, None)
        if self._store.state(job_id) != states.WAITING:  # or it was removed
            return
        job = self._store.job(job_id)
        self._waiting[job_id] = job.begin
        if job.begin is not None and job.begin > self._calendar():
            heapq.heappush(self._times, (job.begin, job_id))
