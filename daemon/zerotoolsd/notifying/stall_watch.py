"""Tells of jobs that run and do not get on, as their supervisors see it."""

from __future__ import annotations

import time
from pathlib import Path

from zerotools.jobs import states
from zerotoolsd.accounts.rights import opened
from zerotoolsd.attempts.movement.standstill import Clocks, standstill
from zerotoolsd.attempts.watcher import Guard
from zerotoolsd.notifying.wording import STALLED, JobTeller
from zerotoolsd.queue.rows import RUNNING, JobRow
from zerotoolsd.queue.store import Store

LOOKING = "looking whether it gets on"


class StallWatch:
    """Looks at the jobs of which somebody wants to know."""

    def __init__(self, store: Store, teller: JobTeller, guard: Guard) -> None:
        self._store = store
        self._teller = teller
        self._guard = guard
        self._told: set[str] = set()
        """Tokens of attempts of which it was told."""

    def look(self) -> None:
        """Put what is new into the outbox. Raises sqlite3.OperationalError: not now."""
        live: set[str] = set()
        for job in self._store.jobs([states.RUNNING]):
            with self._guard(job.id, LOOKING) as reach:
                reach()
                if self._teller.wants(job, STALLED):
                    live |= self._look_at(job)
        self._told &= live

    def _look_at(self, job: JobRow) -> set[str]:
        attempt = self._store.attempts(job.id)[-1]
        if attempt.state != RUNNING:
            return set()
        if attempt.token in self._told:
            return {attempt.token}
        try:
            with opened(Path(attempt.run_dir)) as run_dir:
                seen = standstill(run_dir, None, Clocks())
        except OSError:  # whoever ends the attempt says what is wrong with its directory
            return set()
        if not seen["stalled"]:
            return set()
        now, waits = time.time(), seen["waits_for"]
        why = None if waits is None else f"the others wait for rank {waits['rank']}"
        self._store.outbox.put(self._teller.of_stall(job, attempt.number, why, now), now)
        self._told.add(attempt.token)
        return {attempt.token}
