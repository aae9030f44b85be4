"""Stores yields and the cost of each yield. A yield is a request to an attempt to save and end, so
that its job continues later.

The row of a yield is written in the transaction that changes the state of the job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from zerotools.jobs import states

RunSql = Callable[..., sqlite3.Cursor]

PAUSE = "pause"
PREEMPT = "preempt"
RESIZE = "resize"
RELIEVE = "relieve"
RELIEVE_GPU = "relieve_gpu"
PURPOSES = (PAUSE, PREEMPT, RESIZE, RELIEVE, RELIEVE_GPU)
"""The purposes of a request to save and end.

A user pauses the job; a job of higher priority needs its resources; the job continues with more or
fewer ranks; or the memory of the host or of a shared GPU runs out. After a pause the job is
`paused`; after any other request it is `queued`.
"""


@dataclass(frozen=True, kw_only=True)
class YieldAsk:
    """A request to an attempt to save and end. `purpose` is one of PURPOSES, and `for_job` is the
    job that needs the resources, if any.
    """

    purpose: str
    for_job: int | None = None


@dataclass(frozen=True, kw_only=True)
class YieldRow:
    """A request to an attempt to save and end, and its result. Times are in seconds since the
    epoch.

    `outcome` is one of the lifecycle's outcomes. `steps_lost` is the number of steps that were done
    but not saved. `first_step` is the time of the first step of the job that needed the resources.
    Each of these values is None while it is unknown.
    """

    job_id: int
    attempt: int
    purpose: str
    for_job: int | None
    asked: float
    ended: float | None = None
    outcome: str | None = None
    saved_step: int | None = None
    steps_lost: int | None = None
    first_step: float | None = None


def without_steps(row: YieldRow) -> YieldRow:
    """Return a copy of `row` without outcome and step counts, for users who may not see the job."""
    return replace(row, outcome=None, saved_step=None, steps_lost=None)


@dataclass(frozen=True, kw_only=True)
class YieldEnd:
    """The end of an attempt that was asked to save and end."""

    ended: float
    outcome: str
    saved_step: int | None
    steps_lost: int | None


class PreemptionTable:
    """Reads and changes the table of requests to attempts to save and end.

    All methods run in the transaction of the caller, except `note_first_step`, which has a
    separate transaction.
    """

    def __init__(
        self, sql: RunSql, transaction: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._sql = sql
        self._transaction = transaction

    def record_request(self, job_id: int, attempt: int, ask: YieldAsk, now: float) -> None:
        """Record that the attempt was asked to save and end.

        If the attempt was already asked, the time and the job of the first request are kept.
        """
        self._sql(
            "INSERT INTO yield (job_id, attempt, purpose, for_job, asked) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (job_id, attempt) DO UPDATE SET purpose = excluded.purpose,"
            " for_job = coalesce(for_job, excluded.for_job)",
            (job_id, attempt, ask.purpose, ask.for_job, now),
        )

    def record_end(self, job_id: int, attempt: int, end: YieldEnd) -> None:
        """Record the end of an attempt. Do nothing if it was not asked to save and end."""
        self._sql(
            "UPDATE yield SET ended = ?, outcome = ?, saved_step = ?, steps_lost = ?"
            " WHERE job_id = ? AND attempt = ?",
            (end.ended, end.outcome, end.saved_step, end.steps_lost, job_id, attempt),
        )

    def note_first_step(self, row: YieldRow, when: float) -> None:
        """Record the time `when` of the first step of the job that got the resources."""
        with self._transaction():
            self._sql(
                "UPDATE yield SET first_step = ? WHERE job_id = ? AND attempt = ?",
                (when, row.job_id, row.attempt),
            )

    def of(self, job_id: int) -> list[YieldRow]:
        """Return the requests to all attempts of the job, the oldest first."""
        return self._rows("WHERE job_id = ? ORDER BY attempt", job_id)

    def for_job(self, job_id: int) -> list[YieldRow]:
        """Return the requests to attempts of other jobs that were made because the job `job_id`
        needed resources.
        """
        return self._rows("WHERE for_job = ? ORDER BY asked, job_id", job_id)

    def unanswered(self, since: float) -> list[YieldRow]:
        """Return the requests without `first_step` that may still get one: `for_job` is running, or
        has ended after `since` (seconds since the epoch).
        """
        return self._rows(
            "WHERE for_job IS NOT NULL AND first_step IS NULL AND EXISTS"
            " (SELECT 1 FROM job WHERE id = for_job AND (state = ? OR job.ended > ?))"
            " ORDER BY asked",
            states.RUNNING,
            since,
        )

    def removed(self, job_id: int) -> None:
        """Delete the requests to a job that is removed."""
        self._sql("DELETE FROM yield WHERE job_id = ?", (job_id,))

    def _rows(self, where: str, *values: object) -> list[YieldRow]:
        return [YieldRow(**row) for row in self._sql(f"SELECT * FROM yield {where}", values)]
