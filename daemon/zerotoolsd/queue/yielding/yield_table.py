"""The attempts that were asked to save and end so that their jobs go on later ("yields"), and what
that cost. A row is written with the change of state by which the attempt is asked."""

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
"""What for: its user wants it to wait; a job of higher priority needs what it has; it goes on with
more or fewer ranks; the memory of the host, or of a GPU that it shares, runs out. A pause leads to
`paused`, the others to `queued`."""


@dataclass(frozen=True, kw_only=True)
class YieldAsk:
    """What an attempt is asked for: one of PURPOSES, and the job that needs what it has."""

    purpose: str
    for_job: int | None = None


@dataclass(frozen=True, kw_only=True)
class YieldRow:
    """One attempt that was asked. Times are seconds since the epoch; None: not yet, or not known.

    `outcome` is one of the lifecycle's; `steps_lost` were done and not saved; `first_step` is when
    the job that needed what it had took its first step.
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
    """The row as people may see it who may not see the job."""
    return replace(row, outcome=None, saved_step=None, steps_lost=None)


@dataclass(frozen=True, kw_only=True)
class YieldEnd:
    """How an attempt ended, as far as it matters to a yield; as of `YieldRow`."""

    ended: float
    outcome: str
    saved_step: int | None
    steps_lost: int | None


class YieldTable:
    """The table, in the caller's transaction, or (`note_first_step`) one of its own."""

    def __init__(
        self, sql: RunSql, transaction: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._sql = sql
        self._transaction = transaction

    def ask(self, job_id: int, attempt: int, ask: YieldAsk, now: float) -> None:
        """The attempt is asked. One that was asked before keeps that time, and for whom."""
        self._sql(
            "INSERT INTO yield (job_id, attempt, purpose, for_job, asked) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (job_id, attempt) DO UPDATE SET purpose = excluded.purpose,"
            " for_job = coalesce(for_job, excluded.for_job)",
            (job_id, attempt, ask.purpose, ask.for_job, now),
        )

    def over(self, job_id: int, attempt: int, end: YieldEnd) -> None:
        """The attempt is over; nothing happens if it was not asked."""
        self._sql(
            "UPDATE yield SET ended = ?, outcome = ?, saved_step = ?, steps_lost = ?"
            " WHERE job_id = ? AND attempt = ?",
            (end.ended, end.outcome, end.saved_step, end.steps_lost, job_id, attempt),
        )

    def note_first_step(self, row: YieldRow, when: float) -> None:
        """The job for which the attempt was asked took its first step."""
        with self._transaction():
            self._sql(
                "UPDATE yield SET first_step = ? WHERE job_id = ? AND attempt = ?",
                (when, row.job_id, row.attempt),
            )

    def of(self, job_id: int) -> list[YieldRow]:
        """Those of a job, the oldest first."""
        return self._rows("WHERE job_id = ? ORDER BY attempt", job_id)

    def for_job(self, job_id: int) -> list[YieldRow]:
        """Those that gave way to a job."""
        return self._rows("WHERE for_job = ? ORDER BY asked, job_id", job_id)

    def unanswered(self, since: float) -> list[YieldRow]:
        """Those for a job that runs, or ended after `since`, of which the first step is not known
        yet."""
        return self._rows(
            "WHERE for_job IS NOT NULL AND first_step IS NULL AND EXISTS"
            " (SELECT 1 FROM job WHERE id = for_job AND (state = ? OR job.ended > ?))"
            " ORDER BY asked",
            states.RUNNING,
            since,
        )

    def removed(self, job_id: int) -> None:
        """The job is gone."""
        self._sql("DELETE FROM yield WHERE job_id = ?", (job_id,))

    def _rows(self, where: str, *values: object) -> list[YieldRow]:
        return [YieldRow(**row) for row in self._sql(f"SELECT * FROM yield {where}", values)]
