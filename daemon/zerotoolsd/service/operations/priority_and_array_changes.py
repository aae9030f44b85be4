"""Changes jobs in the queue, or all jobs of an array, and refuses impossible changes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from zerotools.jobs import states
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_types import Conflict, NotFound, Unavailable
from zerotoolsd.interface.event_loop_slice import STEP_SECONDS, TimeSlice
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow, UnreadableSpec
from zerotoolsd.queue.write_rows import Changed
from zerotoolsd.users.account import user_name

FindJob = Callable[[int], JobRow]
"""A function that returns the job with a given number. Raises NotFound."""


ChangeJob = Callable[[JobRow], None]
"""A function that changes an unfinished job. Raises Conflict, NotAllowed, Changed."""


class JobChanges:
    """Changes single jobs in the queue; `find` returns a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    async def set_priority(self, job_id: int, priority: int, uid: int) -> None:
        """Set the priority of a job; see `JobRequests.set_priority`."""
        change = self.prioritising(priority, uid)
        await self._change(self._find(job_id), change, "get another priority")

    def prioritising(self, priority: int, uid: int) -> ChangeJob:
        """Return the function that sets the priority of one job. Raises BadRequest, Forbidden."""
        self._dispatcher.priority_classes.priority_for(uid, priority)

        def change(job: JobRow) -> None:
            if job.priority == priority:
                return
            why = f"priority {priority} instead of {job.priority}, by {user_name(uid)}"
            after, now = job.standing, time.time()
            with self._store.change(job, after, lifecycle.PRIORITY, now=now, why=why) as changed:
                changed.set_priority(priority)
            self._store.transactions.when_committed(self._dispatcher.announce)

        return change

    async def _change(self, job: JobRow, change: ChangeJob, what: str) -> None:
        """Apply `change` to a job in a transaction, if the job has not ended by then.

        `what` names the change in messages. Raises Conflict, Unavailable, NotFound.
        """

        async def made() -> None:
            found = self._find(job.id)
            if found.state in states.TERMINAL:
                raise Conflict(f"job {job.id} {states.predicate(found.state)}, so it cannot {what}")
            change(found)

        try:
            await when_free(made)
        except (NotAllowed, Changed) as error:
            raise Conflict(f"job {job.id} cannot {what}: {error}") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job.id} cannot {what}: writing the queue failed: {error}"
            ) from None


AT_ONCE = 50
"""At most this many jobs of an array are changed in one transaction."""


@dataclass(frozen=True)
class ArrayChange:
    """The result of a change of an array: the numbers of the changed jobs, in order, and the
    numbers of the unchanged jobs with the reason for each.
    """

    changed: tuple[int, ...]
    kept: tuple[tuple[int, str], ...]


class ArrayChanges:
    """Changes all jobs of an array; `find` returns a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    async def members(self, job_id: int) -> list[JobRow]:
        """Return all jobs of the array that the job belongs to, in their order.

        Raises NotFound, Conflict if the job is in no array.
        """
        numbers = [number for number, _ in self._store.array_states(self._array_of(job_id))]
        return await self.jobs(numbers)

    async def jobs(self, numbers: Sequence[int]) -> list[JobRow]:
        """Return the jobs with these numbers. Raises NotFound."""
        time_slice, jobs = TimeSlice(), list[JobRow]()
        for number in numbers:
            jobs.append(self._find(number))
            await time_slice.pause_if_due()
        return jobs

    def _array_of(self, job_id: int) -> int:
        job = self._find(job_id)
        if job.array is None:
            raise Conflict(f"job {job_id} is not part of an array")
        return job.array.id

    async def change(
        self, job_id: int, change: ChangeJob, of: Collection[str] | None = None
    ) -> ArrayChange:
        """Change each job of the array that has not ended and allows the change.

        If any job is in one of the states `of`, only jobs in these states are changed, because the
        other jobs already are as requested. The jobs are changed in several transactions, and other
        requests run in between.

        Raises NotFound, Conflict (no job allows the change, or job `job_id` is in no array),
        Unavailable (the message says how many jobs were changed).
        """
        members = self._store.array_states(self._array_of(job_id))
        open_ones = [job for job, state in members if state not in states.TERMINAL]
        open_ones = [job for job, state in members if state in (of or ())] or open_ones
        if not open_ones:
            raise Conflict(f"all {len(members)} jobs of the array are over")
        changed, kept = list[int](), list[tuple[int, str]]()
        while (first := len(changed) + len(kept)) < len(open_ones):
            some = open_ones[first : first + AT_ONCE]

            async def made(some: Sequence[int] = some) -> ArrayChange:
                return self._change(some, change)

            try:
                found = await when_free(made)
            except sqlite3.OperationalError as error:
                done = f"; {len(changed)} of {len(open_ones)} were changed" if changed else ""
                raise Unavailable(
                    f"the array of job {job_id} cannot be changed: writing the queue failed: "
                    f"{error}{done}"
                ) from None
            changed += found.changed
            kept += found.kept
            await asyncio.sleep(0)
        if not changed:
            raise Conflict(kept[0][1])
        return ArrayChange(tuple(changed), tuple(kept))

    def _change(self, members: Sequence[int], change: ChangeJob) -> ArrayChange:
        """Change jobs from the start of `members` on, until the time slice is used up. Return the
        changed jobs, and the unchanged jobs with the reason for each.
        """
        changed, kept = list[int](), list[tuple[int, str]]()
        until = time.monotonic() + STEP_SECONDS
        with self._store.transactions.together():
            for job_id in members:
                if (changed or kept) and time.monotonic() > until:
                    break
                try:
                    change(self._find(job_id))
                except (Conflict, NotAllowed, NotFound, Changed, UnreadableSpec) as error:
                    kept.append((job_id, str(error)))
                else:
                    changed.append(job_id)
        return ArrayChange(tuple(changed), tuple(kept))


STATES_OF = {
    "release": (states.ON_HOLD, states.PAUSED, states.PAUSING, states.HELD),
    "unpause": (states.PAUSED, states.PAUSING),
}
"""For the operations `release` and `unpause`, the states of the jobs that they change."""


def cancel_function(dispatcher: Dispatcher, uid: int) -> ChangeJob:
    """Return the function that cancels one job."""
    return lambda job: dispatcher.cancel(job, user_name(uid))
