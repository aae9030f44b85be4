"""Reattaches the daemon to attempts that are already running: attempts that the previous daemon
started, and attempts of held jobs.
"""

from __future__ import annotations

import logging

from zerotools.jobs import states
from zerotoolsd.attempts import attempt_status
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher, Guard
from zerotoolsd.attempts.delay_starts import StartBackoff
from zerotoolsd.attempts.start_attempt import AttemptStarter
from zerotoolsd.queue import clocks, fault_isolation, lifecycle
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow
from zerotoolsd.queue.store import Store

log = logging.getLogger(__name__)


class LeasingAttempts:
    """The attempts that have a lease of a GPU, with the status that their run directories show."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def lives_on(self, uuid: str) -> bool:
        """Return whether an attempt with a lease of this GPU is known to be running."""
        return any(map(attempt_status.supervisor_lives, self._on(uuid)))

    def begins_on(self, uuid: str) -> bool:
        """Return whether an attempt with a lease of this GPU may be about to start: it has not
        ended, and is not known to be running.
        """
        return any(
            each.state != ENDED and not attempt_status.supervisor_lives(each)
            for each in self._on(uuid)
        )

    def _on(self, uuid: str) -> list[AttemptRow]:
        leases = [lease for lease in self._store.leases() if lease.gpu_uuid == uuid]
        return [self._store.attempts(lease.job_id)[lease.attempt - 1] for lease in leases]


class AttemptRecovery:
    """Reattaches the daemon to the last attempts of jobs, which `note` or `note_all` has noted."""

    def __init__(
        self,
        *,
        store: Store,
        guard: Guard,
        watcher: AttemptWatcher,
        starter: AttemptStarter,
        pending: StartBackoff,
    ) -> None:
        self._store = store
        self._guard = guard
        self._watcher = watcher
        self._starter = starter
        self._pending = pending
        self._noted: list[int] = []

    def note_all(self) -> None:
        """Note every unfinished attempt of the previous daemon for `reattach_all`."""
        wanted = (*states.ACTIVE, states.HELD)
        self._noted = [job.id for job in reversed(self._store.jobs(wanted))]

    def note(self, job_id: int) -> None:
        """Note the job, so that the next round reattaches to its attempt."""
        if job_id not in self._noted:
            self._noted.append(job_id)

    @property
    def has_noted(self) -> bool:
        """Return whether the daemon still has to reattach to a noted job."""
        return bool(self._noted)

    def reattach_job(self, job_id: int) -> None:
        """Reattach to all noted jobs, and then to this job."""
        self._noted.append(job_id)
        self.reattach_all()

    def reattach_all(self) -> None:
        """Reattach to the attempts of all noted jobs.

        Raises sqlite3.OperationalError; in this case the remaining jobs stay noted.
        """
        while self._noted:
            with self._guard(self._noted[0], fault_isolation.TAKING_UP) as reach:
                reach()
                self._reattach(self._store.job(self._noted[0]))
            del self._noted[0]

    def _reattach(self, job: JobRow) -> None:
        attempts, is_open = self._store.attempts(job.id), bool(self._store.open_tokens(job.id))
        if job.state not in states.ACTIVE and not (job.state == states.HELD and is_open):
            self._pending.forget(job.id)
            return
        if not is_open:
            raise LookupError(
                f"it is {states.display_text(job.state)}, but it has no unfinished attempt"
            )
        attempt = attempts[-1]
        if not self._watcher.watches(attempt):
            self._adopt_attempt(job, attempt)
        elif job.state == states.LAUNCHING and self._watcher.has_supervisor(attempt):
            self._starter.mark_running(attempt, clocks.read_clocks())
        now = self._store.job(job.id).state
        if now == states.STOPPING:
            self._watcher.request_stop(attempt, "cancel")
        elif now in states.GIVING_WAY:
            asked = self._store.yields.of(job.id)
            self._watcher.request_stop(attempt, asked[-1].purpose if asked else lifecycle.YIELD)

    def _adopt_attempt(self, job: JobRow, attempt: AttemptRow) -> None:
        found = attempt_status.attempt_status(attempt)
        log.info("job %d: found its attempt %d %s", job.id, attempt.number, type(found).__name__)
        if isinstance(found, attempt_status.NeverStarted) and job.state == states.HELD:
            return
        if isinstance(found, attempt_status.NeverStarted) and job.state == states.STOPPING:
            cause = "its supervisor ended before it started anything"
            self._watcher.give_up(attempt, {"outcome": lifecycle.LOST, "cause": cause})
            return
        if isinstance(found, attempt_status.NeverStarted) and job.state in states.GIVING_WAY:
            cause = "stopped before it began"
            record = {"outcome": lifecycle.STOPPED, "cause": cause, "steps_done": 0}
            self._watcher.give_up(attempt, record)
            return
        if isinstance(found, attempt_status.NeverStarted):
            # The supervisor may still be starting; if there are two, only one gets the lock.
            self._starter.begin(attempt, self._watcher.give_up)
            return
        self._pending.forget(job.id)
        if isinstance(found, attempt_status.Alive):
            self._starter.mark_running(attempt, found.began or clocks.read_clocks())
        self._watcher.adopt(attempt, found)
