"""What is done to all jobs of an array: in one transaction, all that can be changed or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from zerotools.jobs import states
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.operations.waiting_jobs import ChangeJob, FindJob
from zerotoolsd.queue.changes import Changed
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.refusals import Conflict, Unavailable


@dataclass(frozen=True)
class ArrayChange:
    """The jobs that were asked, the first one first, and why others could not be."""

    changed: tuple[int, ...]
    kept: tuple[tuple[int, str], ...]


class WholeArrays:
    """Changes of the dispatcher's arrays; `find` gives a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    def members(self, job_id: int) -> list[JobRow]:
        """All jobs of the array that the job is one of, the first one first. Raises NotFound,
        Conflict: it is of none."""
        job = self._find(job_id)
        if job.array is None:
            raise Conflict(f"job {job_id} is not one of an array")
        return self._store.jobs(array=job.array.id)[::-1]

    async def change(
        self, job_id: int, change: ChangeJob, of: Collection[str] | None = None
    ) -> ArrayChange:
        """Make the change of each member that is not over and allows it; where any is in one of the
        states `of`, of those alone, as the others are as they are to be.

        Raises NotFound, Conflict (none does, or it is no array), Unavailable: nothing was changed.
        """

        async def made() -> ArrayChange:
            return self._change(self.members(job_id), change, of or ())

        try:
            return await when_free(made)
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"the array of job {job_id} cannot be changed: writing the queue failed: {error}"
            ) from None

    def _change(self, members: list[JobRow], change: ChangeJob, of: Collection[str]) -> ArrayChange:
        open_ones = [job for job in members if job.state not in states.TERMINAL]
        open_ones = [job for job in open_ones if job.state in of] or open_ones
        if not open_ones:
            raise Conflict(f"all {len(members)} jobs of the array are over")
        changed, kept = [], []
        with self._store.transactions.together():
            for job in open_ones:
                try:
                    change(job)
                except (Conflict, NotAllowed, Changed) as error:
                    kept.append((job.id, str(error)))
                else:
                    changed.append(job.id)
            if not changed:
                raise Conflict(kept[0][1])
        return ArrayChange(tuple(changed), tuple(kept))


STATES_OF = {
    "release": (states.ON_HOLD, states.HELD),
    "unpause": (states.PAUSED, states.PAUSING),
}
"""What members are in of which something is undone."""


def cancelling(dispatcher: Dispatcher, uid: int) -> ChangeJob:
    """The change of one job."""
    return lambda job: dispatcher.cancel(job, f"uid {uid}")
