"""Hold and release: a held job keeps its position in the queue and starts after its release.

    hold     of a waiting job         on_hold: it does not start
    hold     of a running job         pausing: it saves and ends its attempt; then it is paused
    release  of any of these, and of  queued, or waiting for its start time or other jobs;
             a job that the daemon    it resumes from its newest checkpoint
             holds

The stored states `on_hold`, `paused` and `held` show who holds a job, and whether it has saved.
Users see one word for the three states, "held". The older requests "pause" and "unpause" do the
same. They are supported until 0.5, and store `paused` also for a waiting job.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable

from zerotools.jobs import states
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.dispatch.end_jobs_for_memory import why_not_saved
from zerotoolsd.interface.api_types import Conflict, Unavailable
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed, PutOnHold, Release, Unpause, name_of
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.tables.preemption_table import PAUSE
from zerotoolsd.queue.write_rows import Changed
from zerotoolsd.service.operations.priority_and_array_changes import ChangeJob, FindJob
from zerotoolsd.users.account import user_name

HELD_BY_USER = frozenset({states.ON_HOLD, states.PAUSING, states.PAUSED})


class HeldJobs:
    """Holds and releases jobs; `find` returns a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    async def hold(self, job_id: int, uid: int, *, lose_steps: bool = False) -> None:
        """Hold a job; see `JobRequests.hold`."""
        await self._make(job_id, self.holding(uid, lose_steps=lose_steps), "be held")

    def holding(self, uid: int, *, lose_steps: bool = False) -> ChangeJob:
        """Return the function that holds one job inside of a transaction."""
        save = self.pausing(uid, lose_steps=lose_steps)

        def change(job: JobRow) -> None:
            if job.state in HELD_BY_USER:
                return
            if job.state in states.ACTIVE or job.state in states.TERMINAL:
                save(job)
                return
            _refuse_held(job)
            self._dispatcher.transitions.apply(job, PutOnHold(why=f"held by {user_name(uid)}"))

        return change

    async def release(self, job_id: int, uid: int) -> None:
        """Release a job; see `JobRequests.release`."""
        await self._make(job_id, self.releasing(uid), "be released")

    def releasing(self, uid: int) -> ChangeJob:
        """Return the function that releases one job, which any user or the daemon may have held."""
        go_on = self.unpausing(uid)

        def change(job: JobRow) -> None:
            if job.state == states.ON_HOLD:
                self._release(job, uid)
            elif job.state in (states.PAUSED, states.PAUSING):
                go_on(job)
            elif job.state == states.HELD:
                if not self._store.open_tokens(job.id):
                    _ = job.spec  # it would be held again at once, for the same reason
                self._dispatcher.resume(job)
            else:
                raise Conflict(
                    f"job {job.id} is not held: "
                    f"it {states.predicate(job.state)}{_command_to_run(job)}"
                )

        return change

    def _release(self, job: JobRow, uid: int) -> None:
        after = self._store.dependencies.of(job.id)
        spoiled = [each.on_id for each in after if each.is_spoiled]
        time_to_come = self._dispatcher.conditions.is_early(job)
        waits = time_to_come or any(not each.is_met for each in after if not each.is_spoiled)
        event = Release(waits=waits)
        to, kind = (
            self._dispatcher.transitions.state_after(job, event),
            name_of(job.standing, event),
        )
        why = f"by {user_name(uid)}"
        if spoiled:
            why += f", without waiting for job {', '.join(map(str, spoiled))}"
        with self._store.change(job, to, kind, now=time.time(), why=why):
            self._store.dependencies.take_any_end(job.id, spoiled)
        self._dispatcher.transitions.publish(job, to)

    async def pause(self, job_id: int, uid: int, *, lose_steps: bool = False) -> None:
        """Pause a job; see `JobRequests.pause`."""
        await self._make(job_id, self.pausing(uid, lose_steps=lose_steps), "be held")

    def pausing(self, uid: int, *, lose_steps: bool = False) -> ChangeJob:
        """Return the function that makes one job save and end its attempt."""

        def change(job: JobRow) -> None:
            _refuse(job)
            _refuse_watched(job)
            if not lose_steps:
                self._refuse_loss(job)
            self._dispatcher.yield_job(job, PAUSE, f"held by {user_name(uid)}")

        return change

    def _refuse_loss(self, job: JobRow) -> None:
        """Raise Conflict if the job runs and would lose the steps since its last checkpoint."""
        if job.state not in (states.LAUNCHING, states.RUNNING, states.YIELDING):
            return
        if (why := why_not_saved(job, self._store.attempts(job.id))) is not None:
            raise Conflict(
                f"job {job.id} would not continue at the same step: {why}; set "
                "script.checkpoint_dir, or call zerotools.worker.checkpoint_written in the "
                f"program; to hold it anyway: zerotools hold --lose-steps {job.id}"
            )

    async def unpause(self, job_id: int, uid: int) -> None:
        """Unpause a job; see `JobRequests.unpause`."""
        await self._make(job_id, self.unpausing(uid), "be released")

    def unpausing(self, uid: int) -> ChangeJob:
        """Return the function that queues a paused job again."""

        def change(job: JobRow) -> None:
            if job.state not in (states.PAUSED, states.PAUSING):
                raise Conflict(
                    f"job {job.id} is not paused: "
                    f"it {states.predicate(job.state)}{_command_to_run(job)}"
                )
            waits = self._dispatcher.conditions.waits(job)
            event = Unpause(who=user_name(uid), waits=waits)
            self._dispatcher.transitions.apply(job, event)

        return change

    async def _make(self, job_id: int, change: ChangeJob, what: str) -> None:
        """Apply `change` to a job in a transaction of the queue; `what` names the change in
        messages.

        Raises Conflict, Unavailable, NotFound.
        """

        async def made() -> None:
            change(self._find(job_id))

        await _run_change(made, f"job {job_id} cannot {what}")


def _refuse(job: JobRow) -> None:
    """Raise Conflict if the job cannot be held."""
    if job.state in states.TERMINAL:
        raise Conflict(f"job {job.id} {states.predicate(job.state)}, so it cannot be held")
    if job.state == states.STOPPING:
        raise Conflict(f"job {job.id} is being cancelled; it cannot be held")
    _refuse_held(job)
    if job.state == states.ON_HOLD:
        raise Conflict(
            f"job {job.id} is held already, and starts when it is released: zerotools release "
            f"{job.id}"
        )


def _refuse_held(job: JobRow) -> None:
    """Raise Conflict if the daemon holds the job, because a process of the job may still run."""
    if job.state == states.HELD:
        raise Conflict(
            f"job {job.id} is held by the daemon already ({job.standing.reason}), and continues "
            f"when it is released: zerotools release {job.id}"
        )


def _refuse_watched(job: JobRow) -> None:
    """Raise Conflict if the daemon can neither stop nor restart the job."""
    spec = job.reading.spec
    if spec is not None and (process := spec.script.process) is not None:
        raise Conflict(
            f"job {job.id} watches process {process.pid}, which a user started by hand: the "
            "daemon cannot start it again; to stop and continue it: kill -STOP "
            f"{process.pid}, and later kill -CONT {process.pid}"
        )


def _command_to_run(job: JobRow) -> str:
    """Return the end of a message: the command with which the user lets the job run again. It is
    empty if no such command exists.
    """
    if job.state in states.TERMINAL:
        return f"; to run it again: zerotools retry {job.id}"
    held = job.state in (states.ON_HOLD, states.HELD)
    return f"; zerotools release {job.id}" if held else ""


async def _run_change(change: Callable[[], Awaitable[None]], what: str) -> None:
    """Run `change`, which writes the queue. `what` names the change in messages.

    Raises Conflict, Unavailable, NotFound.
    """
    try:
        await when_free(change)
    except (NotAllowed, Changed) as error:
        raise Conflict(f"{what}: {error}") from None
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{what}: writing the queue failed: {error}") from None
