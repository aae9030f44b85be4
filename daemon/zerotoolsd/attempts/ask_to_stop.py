"""Asks running attempts to save and stop: after a cancel, at a time limit, or so that the job
continues later.

First one transaction commits the new state of the job and a row in the table of yields. Then the
request is sent to the attempt. If the daemon is killed between the two, the next daemon repeats the
request (`AttemptRecovery`).

Example: job 7 runs with GPU 0, and `zerotools pause 7` arrives.

1. One transaction: job 7 is `pausing`, with the event and the row (7, attempt 2, "pause").
2. The daemon writes `request.json`, and sends a SIGTERM to the supervisor.
3. The supervisor notifies the ranks. They save at their next step, and end.
4. The end of the attempt is committed as usual: the job is `paused`, GPU 0 is free, and the row has
   the saved step and the number of lost steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from zerotools.jobs import states
from zerotoolsd.attempts import crash_points
from zerotoolsd.attempts.attempt_watcher import AttemptWatcher, Guard
from zerotoolsd.attempts.delay_starts import StartBackoff
from zerotoolsd.attempts.finalize_attempt import AttemptFinalizer
from zerotoolsd.attempts.reattach_attempts import AttemptRecovery
from zerotoolsd.queue import fault_isolation, lifecycle, time_limit
from zerotoolsd.queue.change_state import StateChanger
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import Cancel, LifecycleEvent, Pause, Yield
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.queue.tables.preemption_table import PAUSE, YieldAsk


class AttemptStopper:
    """Asks the attempts that `watcher` watches to save and stop."""

    def __init__(
        self,
        *,
        transitions: StateChanger,
        watcher: AttemptWatcher,
        recovery: AttemptRecovery,
        pending: StartBackoff,
        ends: AttemptFinalizer,
        guard: Guard,
    ) -> None:
        self._transitions = transitions
        self._store = transitions.store
        self._watcher = watcher
        self._recovery = recovery
        self._pending = pending
        self._ends = ends
        self._guard = guard

    @property
    def after_commit(self) -> Callable[[Callable[[], None]], None]:
        """Return the function that calls an action after the current transaction is committed."""
        return self._store.transactions.when_committed

    def cancel(self, job: JobRow, who: str) -> None:
        """Cancel the job for the user `who`. Its attempt is asked to save and stop. Raises
        NotAllowed if the job has ended.
        """
        event = Cancel(who=who, live=bool(self._store.open_tokens(job.id)))
        after = self._transitions.state_after(job, event)
        if job.state != states.STOPPING:
            self._transitions.apply(job, event)
            self.after_commit(lambda: crash_points.crash_at(crash_points.CANCEL_COMMITTED))
        if after.state == states.STOPPING:
            of_held = job.state == states.HELD
            self.after_commit(lambda: self._ask(job, "cancel", of_held=of_held))

    def give_way(self, job: JobRow, ask: YieldAsk, why: str) -> None:
        """Ask the attempt of the job to save and end. `why` is the reason in one sentence. Raises
        NotAllowed.

        After the attempt has ended, the job is paused or queued again, according to the purpose in
        `ask`. A second call only sends the request again. A job without a running attempt is paused
        at once.
        """
        event: LifecycleEvent = Pause(why=why) if ask.purpose == PAUSE else Yield(why=why)
        after = self._transitions.state_after(job, event)
        if after.state not in states.GIVING_WAY:
            if job.state != after.state:
                self._transitions.apply(job, event)
            return
        attempt = self._store.attempts(job.id)[-1]
        if job.state != after.state:
            kind, now, number = lifecycle.name_of(job.standing, event), time.time(), attempt.number
            with self._store.change(job, after, kind, now=now, attempt=number) as change:
                change.yields.record_request(job.id, number, ask, now)
            self._transitions.publish(job, after)
            self.after_commit(lambda: crash_points.crash_at(crash_points.YIELD_COMMITTED))
        self.after_commit(lambda: self._ask(job, ask.purpose))

    def _ask(self, job: JobRow, reason: str, *, of_held: bool = False) -> None:
        if of_held or job.id in self._pending:
            self._recovery.reattach_job(job.id)
            return
        with self._guard(job.id, fault_isolation.STOPPING) as reach:
            reach()
            self._watcher.request_stop(self._store.attempts(job.id)[-1], reason)

    def ask_expired(self, now: Moment) -> list[float]:
        """Ask the attempts of all jobs that have reached their time limit to save and stop.

        Return the seconds that each other running job with a time limit has left.
        """
        left: list[float] = []
        for job in self._store.jobs([states.RUNNING]):
            if job.id in self._pending:  # nothing of it runs, because the machine is not ready
                continue
            with self._guard(job.id, fault_isolation.TIMING) as reach:
                reach()
                attempts = self._store.attempts(job.id)
                seconds = time_limit.seconds_left(job.reading.spec, attempts, now)
                if seconds is not None and seconds > 0:
                    left.append(seconds)
                elif seconds is not None and not self._was_expired(attempts[-1]):
                    self._ends.expired.add(attempts[-1].token)
                    self._watcher.request_stop(attempts[-1], time_limit.REASON)
        return left

    def _was_expired(self, attempt: AttemptRow) -> bool:
        return attempt.token in self._ends.expired

    def is_expired(self, job: JobRow) -> bool:
        """Return whether the job's attempt was asked to stop because of the job's time limit."""
        expired = self._ends.expired
        return bool(expired) and self._was_expired(self._store.attempts(job.id)[-1])
