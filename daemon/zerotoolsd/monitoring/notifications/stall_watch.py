"""Finds running jobs without progress, according to their supervisors, and makes their notices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.attempts.progress_report.stall_report import Clocks, standstill
from zerotoolsd.monitoring.notifications.notice_text import STALLED, JobTeller
from zerotoolsd.queue.rows import RUNNING, AttemptRow, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.users.open_as_user import opened

LOOKING = "checking its progress"


class StallWatch:
    """Checks the running jobs. `stalled` are the numbers of those without progress at the last
    check."""

    def __init__(self, store: Store, teller: JobTeller, guard: Guard) -> None:
        self._store = store
        self._teller = teller
        self._guard = guard
        self._told: set[str] = set()
        """Tokens of reported attempts."""
        self.stalled: frozenset[int] = frozenset()

    def look(self) -> None:
        """Put new notices into the outbox. Raises sqlite3.OperationalError if it cannot be written
        now."""
        live, stalled = set[str](), set[int]()
        for job in self._store.jobs([states.RUNNING]):
            with self._guard(job.id, LOOKING) as reach:
                reach()
                attempt = self._store.attempts(job.id)[-1]
                if attempt.state != RUNNING or (seen := _standstill(attempt)) is None:
                    continue
                stalled.add(job.id)
                live.add(attempt.token)
                if self._teller.wants(job, STALLED):
                    self._tell(job, attempt, seen)
        self._told &= live
        self.stalled = frozenset(stalled)

    def _tell(self, job: JobRow, attempt: AttemptRow, seen: Mapping[str, Any]) -> None:
        if attempt.token in self._told:
            return
        now, waits, why = time.time(), seen["waits_for"], seen["stall"]
        if not why and waits is not None:
            why = f"the others wait for rank {waits['rank']}"
        self._store.outbox.put(self._teller.of_stall(job, attempt.number, why or None, now), now)
        self._told.add(attempt.token)


def _standstill(attempt: AttemptRow) -> Mapping[str, Any] | None:
    """Return the state of an attempt without progress; None if it has progress, or is unknown."""
    try:
        with opened(Path(attempt.run_dir)) as run_dir:
            seen = standstill(run_dir, None, Clocks())
    except OSError:  # errors of its directory are reported at the attempt's end
        return None
    return seen if seen["stalled"] else None
