"""Which jobs run and do not get on, as their supervisors see it, and who is told of that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotoolsd.accounts.rights import opened
from zerotoolsd.attempts.movement.standstill import Clocks, standstill
from zerotoolsd.attempts.watcher import Guard
from zerotoolsd.notifying.wording import STALLED, JobTeller
from zerotoolsd.queue.rows import RUNNING, AttemptRow, JobRow
from zerotoolsd.queue.store import Store

LOOKING = "looking whether it gets on"


class StallWatch:
    """Looks at the jobs that run. `stalled` are the numbers of those that did not get on at the
    last look."""

    def __init__(self, store: Store, teller: JobTeller, guard: Guard) -> None:
        self._store = store
        self._teller = teller
        self._guard = guard
        self._told: set[str] = set()
        """Tokens of attempts of which it was told."""
        self.stalled: frozenset[int] = frozenset()

    def look(self) -> None:
        """Put what is new into the outbox. Raises sqlite3.OperationalError: not now."""
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
    """What is seen of an attempt that does not get on; None: it does, or nothing is known."""
    try:
        with opened(Path(attempt.run_dir)) as run_dir:
            seen = standstill(run_dir, None, Clocks())
    except OSError:  # whoever ends the attempt says what is wrong with its directory
        return None
    return seen if seen["stalled"] else None
