"""Groups submits that arrive at the same time into one transaction, so that they need only one
write to the disk.

Each submit is acknowledged after that write. A single submit does not wait. If other submits are
being prepared (`announce`), a submit waits for the other submits, but at most `GATHER_SECONDS`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from zerotoolsd.queue.database_disk_reserve import is_full
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import NewJob

GATHER_SECONDS = 0.02
BUSY_SECONDS = 5.0
"""Seconds for which a change is retried while another process has locked the database."""
RETRY_SECONDS = 0.05

Value = TypeVar("Value")
Answer = asyncio.Future[tuple[JobRow, bool]]


class GroupCommit:
    """Adds jobs to the queue `store`, several jobs in one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._coming = 0
        self._waiting: list[tuple[NewJob, Answer]] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def announce(self) -> Iterator[None]:
        """Return a context that announces a submit, so that other submits wait for this one.

        The preparation of the job and the call of `submit` must both be inside the context.
        """
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._commit_if_complete()

    async def submit(self, new: NewJob) -> tuple[JobRow, bool]:
        """Add a job to the queue. Return the same values as `Store.submit`.

        Raises the errors of `Store.submit` and of `new.check`.
        """
        return await when_free(lambda: self._join(new))

    async def _join(self, new: NewJob) -> tuple[JobRow, bool]:
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        self._waiting.append((new, answer))
        if self._timer is None:
            self._timer = loop.call_later(GATHER_SECONDS, self._commit)
        self._commit_if_complete()
        return await answer

    def _commit_if_complete(self) -> None:
        if self._waiting and len(self._waiting) >= self._coming:
            self._commit()

    def _commit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Do not queue the job of a caller that gave up: the caller would not know of it.
        waiting, self._waiting = self._waiting, []
        try:
            batch = [(new, answer) for new, answer in waiting if not answer.done()]
            results = self._store.submit_all([new for new, _ in batch])
        except Exception as error:  # an error of disk, memory or a lock: no job was queued
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)


async def when_free(change: Callable[[], Awaitable[Value]]) -> Value:
    """Call `change` and return its result. If another process has locked the database, retry
    for BUSY_SECONDS.

    The event loop is not blocked meanwhile. Raises sqlite3.OperationalError if the database
    is still locked, or if the disk is full.
    """
    loop = asyncio.get_running_loop()
    deadline, was_full = loop.time() + BUSY_SECONDS, False
    while True:
        try:
            return await change()
        except sqlite3.OperationalError as error:
            # The queue has used its reserved space: try once more.
            once_more = is_full(error) and not was_full
            was_full = was_full or once_more
            if not (is_busy(error) or once_more) or loop.time() > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return whether `error` means that another process has locked the database."""
    code = getattr(error, "sqlite_errorcode", 0)  # only SQLite's own errors have it
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
