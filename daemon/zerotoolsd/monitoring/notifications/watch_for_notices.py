"""Watches jobs and the machine for notices: first steps and stalls of jobs, and shortages of memory
or disk space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.attempts.current_phase import Clocks, time_since_step
from zerotoolsd.attempts.last_report import first_step_time
from zerotoolsd.config.notify_config import DISK_SHORT, MEMORY_SHORT
from zerotoolsd.monitoring.notifications.make_notices import (
    FIRST_STEP,
    MACHINE_JOB,
    STALLED,
    JobNotices,
    condition_of,
)
from zerotoolsd.queue.rows import ENDED, RUNNING, AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.notice_outbox import Notice, Outbox
from zerotoolsd.users.open_as_user import opened_run_directory

LOOKING = "checking its progress"


class ProgressWatch:
    """Finds running jobs that have done their first step, and running jobs that make no progress.

    `stalled` has the numbers of the jobs that made no progress at the last check.
    """

    def __init__(self, store: Store, notices: JobNotices, guard: Guard) -> None:
        self._store = store
        self._notices = notices
        self._guard = guard
        self._known: dict[tuple[str, str], bool] = {}
        """Whether a condition holds, by the token of an attempt and the kind of the notice."""
        self.stalled: frozenset[int] = frozenset()

    def check(self) -> None:
        """Check the running jobs, and put notices of new conditions into the outbox.

        Raises sqlite3.OperationalError if the outbox cannot be written now.
        """
        live, stalled = set[str](), set[int]()
        for job in self._store.jobs([states.RUNNING]):
            with self._guard(job.id, LOOKING) as reach:
                reach()
                attempt = self._store.attempts(job.id)[-1]
                if attempt.state != RUNNING:
                    continue
                live.add(attempt.token)
                self._check_first_step(job, attempt)
                if (seen := _stall_report(attempt)) is not None:
                    stalled.add(job.id)
                self._check_stall(job, attempt, seen)
        self._known = {key: holds for key, holds in self._known.items() if key[0] in live}
        self.stalled = frozenset(stalled)

    def _check_first_step(self, job: JobRow, attempt: AttemptRow) -> None:
        if (attempt.token, FIRST_STEP) in self._known or not self._notices.wants(job, FIRST_STEP):
            return
        now = time.time()
        if notices := self._of_first_step(job, attempt, now):
            name = condition_of(FIRST_STEP, attempt)
            self._store.outbox.put_once(job.id, name, notices)
            self._known[attempt.token, FIRST_STEP] = True

    def check_at_end(self, job: JobRow, number: int, now: float) -> None:
        """Put a notice of the first step into the outbox, if the attempt `number` has ended and no
        check has seen its first step.

        Call this in the transaction of the change.
        """
        if not self._notices.wants(job, FIRST_STEP):
            return
        attempt = self._store.attempts(job.id)[number - 1]
        if attempt.state == ENDED and (notices := self._of_first_step(job, attempt, now)):
            self._store.outbox.add_once(job.id, condition_of(FIRST_STEP, attempt), notices)

    def _of_first_step(self, job: JobRow, attempt: AttemptRow, now: float) -> list[Notice]:
        when = first_step_time(Path(attempt.run_dir))
        return [] if when is None else [*self._notices.of_first_step(job, attempt, when, now)]

    def _check_stall(
        self, job: JobRow, attempt: AttemptRow, seen: Mapping[str, Any] | None
    ) -> None:
        known = self._known.get((attempt.token, STALLED))
        if seen is None:
            if known is not False:
                self._store.outbox.forget(job.id, condition_of(STALLED, attempt))
                self._known[attempt.token, STALLED] = False
        elif not known and self._notices.wants(job, STALLED):
            waits, why = seen["waits_for"], seen["stall"]
            if not why and waits is not None:
                why = f"the others wait for rank {waits['rank']}"
            now = time.time()
            notices = self._notices.of_stall(job, attempt, why or None, now)
            self._store.outbox.put_once(job.id, condition_of(STALLED, attempt), notices)
            self._known[attempt.token, STALLED] = True


def _stall_report(attempt: AttemptRow) -> Mapping[str, Any] | None:
    """Return the report on an attempt that makes no progress; None for any other attempt, or if its
    progress is unknown.
    """
    try:
        with opened_run_directory(Path(attempt.run_dir)) as run_dir:
            seen = time_since_step(run_dir, None, Clocks())
    except OSError:  # errors of its directory are reported at the attempt's end
        return None
    return seen if seen["stalled"] else None


Shortages = Callable[[], Mapping[str, str]]
"""A function that returns the current shortages: the kind of the notice to one sentence."""
CALM_SECONDS = 600.0
"""A shortage is reported again only after the machine had none for this long."""


class ShortageWatch:
    """Reports each shortage of the machine once, even if the daemon restarts meanwhile."""

    def __init__(
        self,
        outbox: Outbox,
        notices: JobNotices,
        shortages: Shortages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._notices = notices
        self._shortages = shortages
        self._clock = clock
        self._calm_since: dict[str, float] = {}
        self._reported: set[str] = {MEMORY_SHORT, DISK_SHORT}
        """Shortages that this daemon, or one before, may have reported."""

    def check(self) -> None:
        """Check the machine, and put notices of new shortages into the outbox.

        Raises sqlite3.OperationalError if the outbox cannot be written now.
        """
        found = self._shortages()
        for notice in (MEMORY_SHORT, DISK_SHORT):
            if not self._notices.wants(None, notice):
                continue
            if (why := found.get(notice)) is not None:
                self._calm_since.pop(notice, None)
                notices = self._notices.of_machine(notice, why, time.time())
                self._outbox.put_once(MACHINE_JOB, notice, notices)
                self._reported.add(notice)
            elif notice in self._reported:
                since = self._calm_since.setdefault(notice, self._clock())
                if self._clock() - since >= CALM_SECONDS:
                    self._outbox.forget(MACHINE_JOB, notice)
                    self._reported.discard(notice)
