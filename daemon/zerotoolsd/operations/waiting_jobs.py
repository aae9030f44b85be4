"""Changes of jobs that are in the queue, and what is in the way of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from zerotools.jobs import states
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.queue.changes import Changed
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service import Conflict, Unavailable

FindJob = Callable[[int], JobRow]
"""Raises NotFound."""


class WaitingJobs:
    """The operations on the dispatcher's jobs; `find` gives a job by its number."""

    def __init__(self, dispatcher: Dispatcher, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._find = find

    async def set_priority(self, job_id: int, priority: int, uid: int) -> None:
        """See `JobService`."""
        job = self._find(job_id)
        self._dispatcher.priority_classes.priority_for(uid, priority)

        def change(job: JobRow) -> None:
            if job.priority != priority:
                self._dispatcher.set_priority(job, priority, f"uid {uid}")

        await self._change(job, change, "get another priority")

    async def _change(self, job: JobRow, change: Callable[[JobRow], None], what: str) -> None:
        """Make a change of a job that is not over, as it is when the queue is free. Raises
        Conflict, Unavailable, NotFound."""

        async def made() -> None:
            found = self._find(job.id)
            if found.state in states.TERMINAL:
                raise Conflict(f"job {job.id} is over: it is {found.state}; it cannot {what}")
            change(found)

        try:
            await when_free(made)
        except (NotAllowed, Changed) as error:
            raise Conflict(f"job {job.id} cannot {what}: {error}") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job.id} cannot {what}: writing the queue failed: {error}"
            ) from None
