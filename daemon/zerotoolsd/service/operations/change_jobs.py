"""Changes jobs in the queue, and refuses impossible changes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from zerotools.jobs import states
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_errors import Conflict, Unavailable
from zerotoolsd.queue import transition_table
from zerotoolsd.queue.changes import Changed
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.users.name_service import user_name

FindJob = Callable[[int], JobRow]
"""Raises NotFound."""


ChangeJob = Callable[[JobRow], None]
"""Function that changes an unfinished job. Raises Conflict, NotAllowed, Changed."""


class WaitingJobs:
    """The operations on the dispatcher's jobs; `find` gives a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._find = find

    async def set_priority(self, job_id: int, priority: int, uid: int) -> None:
        """Set the priority; see `JobRequests`."""
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
            with self._store.change(
                job, after, transition_table.PRIORITY, now=now, why=why
            ) as changed:
                changed.set_priority(priority)
            self._store.transactions.when_committed(self._dispatcher.announce)

        return change

    async def _change(self, job: JobRow, change: ChangeJob, what: str) -> None:
        """Change an unfinished job, in its state at the time of the transaction.

        Raises Conflict, Unavailable, NotFound.
        """

        async def made() -> None:
            found = self._find(job.id)
            if found.state in states.TERMINAL:
                raise Conflict(
                    f"job {job.id} is over: it is {_words(found.state)}; it cannot {what}"
                )
            change(found)

        try:
            await when_free(made)
        except (NotAllowed, Changed) as error:
            raise Conflict(f"job {job.id} cannot {what}: {error}") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job.id} cannot {what}: writing the queue failed: {error}"
            ) from None


def _words(state: str) -> str:
    return states.in_words(state)
