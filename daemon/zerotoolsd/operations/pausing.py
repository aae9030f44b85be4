"""A job gives what it has back and keeps its place: pause and unpause."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable

from zerotools.jobs import states
from zerotoolsd.accounts.name_service import user_name
from zerotoolsd.attempts.giving_way.savable import why_not_saved
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.operations.waiting_jobs import ChangeJob, FindJob
from zerotoolsd.queue.changes import Changed
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed, Unpause
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.yielding.yield_table import PAUSE
from zerotoolsd.service.refusals import Conflict, Unavailable


class PausedJobs:
    """The operations on the dispatcher's jobs; `find` gives a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    async def pause(self, job_id: int, uid: int, *, lose_steps: bool = False) -> None:
        """See `JobService`."""
        change = self.pausing(uid, lose_steps=lose_steps)

        async def pause() -> None:
            change(self._find(job_id))

        await _made(pause, f"job {job_id} cannot be paused")

    def pausing(self, uid: int, *, lose_steps: bool = False) -> ChangeJob:
        """The change of one job."""

        def change(job: JobRow) -> None:
            _refuse(job)
            _refuse_watched(job)
            if not lose_steps:
                self._refuse_loss(job)
            self._dispatcher.yield_job(job, PAUSE, f"paused by {user_name(uid)}")

        return change

    def _refuse_loss(self, job: JobRow) -> None:
        """Raises Conflict: it runs, and what it did since it began would be lost."""
        if job.state not in (states.LAUNCHING, states.RUNNING, states.YIELDING):
            return
        if (why := why_not_saved(job, self._store.attempts(job.id))) is not None:
            raise Conflict(
                f"job {job.id} would not go on where it is paused: {why}; set "
                "script.checkpoint_dir, or call zerotools.worker.checkpoint_written in the "
                f"program; to pause it all the same: zerotools pause --lose-steps {job.id}"
            )

    async def unpause(self, job_id: int, uid: int) -> None:
        """See `JobService`."""
        change = self.unpausing(uid)

        async def unpause() -> None:
            change(self._find(job_id))

        await _made(unpause, f"job {job_id} cannot be unpaused")

    def unpausing(self, uid: int) -> ChangeJob:
        """The change of one job."""

        def change(job: JobRow) -> None:
            if job.state not in (states.PAUSED, states.PAUSING):
                raise Conflict(f"job {job.id} is not paused: it is {_words(job.state)}{_do(job)}")
            waits = self._dispatcher.conditions.waits(job)
            event = Unpause(who=user_name(uid), waits=waits)
            self._dispatcher.transitions.take(job, event)

        return change


def _refuse(job: JobRow) -> None:
    """Raises Conflict: there is nothing to pause."""
    if job.state in states.TERMINAL:
        raise Conflict(f"job {job.id} is over: it is {_words(job.state)}; it cannot be paused")
    if job.state == states.STOPPING:
        raise Conflict(f"job {job.id} is being cancelled; it cannot be paused")
    if job.state == states.HELD:
        raise Conflict(
            f"job {job.id} is held by the daemon already ({job.standing.reason}), and starts when "
            f"somebody resumes it: zerotools resume {job.id}"
        )
    if job.state == states.ON_HOLD:
        raise Conflict(
            f"job {job.id} is on hold already, and starts when it is released: zerotools release "
            f"{job.id}"
        )


def _refuse_watched(job: JobRow) -> None:
    """Raises Conflict: it is not the daemon's to stop and to start again."""
    spec = job.reading.spec
    if spec is not None and (process := spec.script.process) is not None:
        raise Conflict(
            f"job {job.id} watches process {process.pid}, which somebody started by hand: nothing "
            f"could start it again; to stop and continue it: kill -STOP {process.pid}, and later "
            f"kill -CONT {process.pid}"
        )


def _do(job: JobRow) -> str:
    """What lets a job start that is not paused, and is kept from it."""
    verbs = {states.ON_HOLD: "release", states.HELD: "resume"}
    return f"; zerotools {verbs[job.state]} {job.id}" if job.state in verbs else ""


async def _made(change: Callable[[], Awaitable[None]], what: str) -> None:
    """Make a change when the queue is free. Raises Conflict, Unavailable, NotFound."""
    try:
        await when_free(change)
    except (NotAllowed, Changed) as error:
        raise Conflict(f"{what}: {error}") from None
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{what}: writing the queue failed: {error}") from None


def _words(state: str) -> str:
    return state.replace("_", " ")
