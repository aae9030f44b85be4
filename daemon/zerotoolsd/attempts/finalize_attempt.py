"""Writes the ends of attempts into the queue. A commit that fails is repeated."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts import cause_of_end, crash_points, make_end_event, orphan_processes
from zerotoolsd.attempts.attempt_watcher import Guard
from zerotoolsd.attempts.cause_of_end import cause_of, saved_step, with_shutdown, with_xids
from zerotoolsd.attempts.job_environment import unshown_values
from zerotoolsd.attempts.metric_counters import MetricCounters
from zerotoolsd.queue import clocks, fault_isolation, lifecycle, retries_by_cause, time_limit
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.gpu_fault_fences import fences_of
from zerotoolsd.queue.lifecycle import Ended
from zerotoolsd.queue.rows import AttemptRow, JobRow, Lease
from zerotoolsd.queue.tables.preemption_table import YieldEnd
from zerotoolsd.supervisor.stop.kill_descendants import is_still_alive

XID_SLACK_SECONDS = 1.0
"""Largest difference, in seconds, between the clock of the kernel's log and CLOCK_MONOTONIC."""
_UNEXPLAINED = (lifecycle.CRASHED, lifecycle.LOST)

XidsOf = Callable[[Sequence[str], float], Mapping[str, Sequence[GpuXid]]]
"""A function of GPU UUIDs and a time of CLOCK_MONOTONIC that returns the XIDs since then, by
UUID.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GpuFaults:
    """The rules for GPUs that fail under an attempt.

    `name` maps the UUID of a GPU to the name that users see. `xids` returns the driver errors
    (XIDs) of GPUs. A faulty GPU is fenced for `fence_seconds`.
    """

    name: Callable[[str], str] = str
    xids: XidsOf = lambda uuids, since: {}
    fence_seconds: float = 0.0


class AttemptFinalizer:
    """Writes the ends of attempts into the queue.

    Args:
        wake: called after each new end, so that the dispatcher's loop runs again.
        gone: called with each ended attempt that has no surviving process, so that its GPUs are
            free.
        freed: called with each lease of a GPU that no process of the attempt uses any more. It
            releases the lease now or later.
    """

    def __init__(
        self,
        *,
        transitions: StateChanger,
        guard: Guard,
        wake: Callable[[], None],
        faults: GpuFaults | None = None,
        tally: MetricCounters | None = None,
        gone: Callable[[AttemptRow], None] = lambda attempt: None,
        freed: Callable[[Lease], None] | None = None,
    ) -> None:
        self._transitions = transitions
        self._store = transitions.store
        self._guard = guard
        self._wake = wake
        self._faults = faults or GpuFaults()
        self._tally = tally or MetricCounters()
        self._gone, self._freed = gone, freed or self._release
        self.expired: set[str] = set()
        """Tokens of the attempts that were asked to stop because of their job's time limit."""
        self._unsettled: dict[str, tuple[AttemptRow, Mapping[str, Any]]] = {}
        self._unlooked: set[str] = set()
        """Tokens of the ended attempts with GPUs that must be read before the end is committed."""

    @property
    def all_committed(self) -> bool:
        """Return whether all reported ends of attempts are in the store."""
        return not self._unsettled

    def record_end(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        """Write the end of an attempt into the queue, now or later if the commit fails."""
        crash_points.crash_at(crash_points.END_SEEN)
        if attempt.token not in self._unsettled:
            self._unsettled[attempt.token] = (attempt, record)
            self._wake()
            if attempt.gpu_uuids and record.get("outcome") in _UNEXPLAINED:
                self._unlooked.add(attempt.token)
        if attempt.token in self._unlooked:
            return
        try:
            with self._guard(attempt.job_id, fault_isolation.ENDING) as reach:
                reach()
                self._commit(attempt, record)
        except sqlite3.OperationalError as error:
            log.error("the end of job %d cannot be recorded yet: %s", attempt.job_id, error)
        else:
            del self._unsettled[attempt.token]
            self.expired.discard(attempt.token)

    @property
    def needs_gpu_reading(self) -> bool:
        """Return whether the GPUs must be read again before an end is recorded, because a fault of
        a GPU may explain the end.
        """
        return bool(self._unlooked)

    def record_gpu_reading(self) -> None:
        """Record that the GPUs have been read, or that the driver does not respond."""
        self._unlooked.clear()

    def retry(self) -> None:
        """Repeat the commits that have failed."""
        for attempt, record in list(self._unsettled.values()):
            self.record_end(attempt, record)

    def _commit(self, attempt: AttemptRow, record: Mapping[str, Any]) -> None:
        job, now = self._store.job(attempt.job_id), time.time()
        if attempt.token not in self._store.open_tokens(job.id):
            return  # it was ended by force
        *before, row = self._store.attempts(job.id)[: attempt.number]
        asked = attempt.token in self.expired
        left = make_end_event.survivors_sentence(record, attempt.gpu_uuids, self._faults.name)
        xids = self._reported_xids(row)
        if job.state not in states.GIVING_WAY:
            record = with_shutdown(record, row.boot_id)
        record = with_xids(record, xids, self._faults.name)
        reported = [each for found in xids.values() for each in found]
        cause = cause_of(record, reported, on_gpus=bool(row.gpu_uuids))
        record = cause_of_end.with_explained_cause(record, cause, unshown_values(job.reading.spec))
        end = make_end_event.end_event(
            job, record, asked=asked, before=before, left=left, kind=cause, attempt=row
        )
        after, kind = self._transitions.state_after(job, end), lifecycle.name_of(job.standing, end)
        when = time_limit.end_of(record, attempt.began, now)
        with self._store.change(
            job, after, kind, now=now, attempt=attempt.number, ended=when
        ) as change:
            change.attempt_ended(
                attempt.number, when, record, make_end_event.survivors_text(record), cause
            )
            change.yields.record_end(job.id, attempt.number, _yield_end(end, record, when))
            if retries_by_cause.rule_of(cause).fences:
                for fence in fences_of(row, xids, when, self._faults.fence_seconds):
                    change.fence(fence)
        if left is not None:
            log.warning("job %d: %s", job.id, left)
        if make_end_event.survivors_text(record) is None:
            self._store.transactions.when_committed(lambda: self._gone(row))
        self._tally.attempt_ended(end.outcome, cause, record, job.standing.best_step)
        self._transitions.publish(job, after)

    def _reported_xids(self, attempt: AttemptRow) -> Mapping[str, Sequence[GpuXid]]:
        here = clocks.read_clocks()
        if attempt.started_clock is None or attempt.boot_id != here.boot_id:
            return {}
        return self._faults.xids(attempt.gpu_uuids, attempt.started_clock - XID_SLACK_SECONDS)

    def end_by_force(self, job: JobRow, why: str) -> bool:
        """Kill the remaining processes of a cancelled job, and write the end of its attempt into
        the queue. Return whether it succeeded. Raises sqlite3.OperationalError.
        """
        try:
            killed = []
            for token, run_dir in self._store.open_tokens(job.id).items():
                killed += orphan_processes.kill_orphans(
                    orphan_processes.traces_of(Path(run_dir), token)
                )
            record = make_end_event.forced_record(killed, why)
            after = self._transitions.state_after(
                job, make_end_event.end_event(job, record, asked=False)
            )
            now = time.time()
            with self._store.change(job, after, lifecycle.CRASHED, now=now) as change:
                change.open_attempts_ended(now, record, make_end_event.survivors_text(record))
        except sqlite3.OperationalError:
            raise
        except Exception:  # it is held instead
            log.exception("job %d cannot be ended by force", job.id)
            return False
        self._transitions.publish(job, after)
        return True

    def release_freed(self) -> bool:
        """Release the GPUs of ended attempts that no process uses any more. Return whether
        processes of ended attempts still use other GPUs.
        """
        lives = False
        for lease in self._store.outlived.leases():
            with self._guard(lease.job_id, fault_isolation.RELEASING) as reach:
                reach()
                attempt = self._store.attempts(lease.job_id)[lease.attempt - 1]
                if any(map(is_still_alive, make_end_event.gpu_survivors(attempt.result or {}))):
                    lives = True
                else:
                    self._freed(lease)
        return lives

    def _release(self, lease: Lease) -> None:
        self._store.release(lease, time.time())


def _yield_end(end: Ended, record: Mapping[str, Any], when: float) -> YieldEnd:
    return YieldEnd(
        ended=when,
        outcome=end.outcome,
        saved_step=saved_step(record) or None,
        steps_lost=end.steps_lost,
    )
