"""Stores leases of GPUs that are still in use after their attempt has ended, and the uploads of
finished jobs.

An ended attempt keeps its lease of a GPU while a process or memory of the attempt remains on the
GPU; `held_by` names that process or memory. If the process or memory is found only after the lease
was released, the lease is added again; by then another job may already use a part of the same GPU.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from zerotools.jobs import states
from zerotoolsd.queue.rows import ENDED, AttemptRow, Lease, attempt_row
from zerotoolsd.queue.sql_values import shortened_reason

RunSql = Callable[..., sqlite3.Cursor]
Append = Callable[..., int]
"""A function that adds an event: (time, job, attempt, kind, old state, new state, text)."""


class OrphanLeases:
    """The leases of GPUs that ended attempts still have. Each change is a separate transaction."""

    def __init__(
        self,
        sql: RunSql,
        transaction: Callable[[], AbstractContextManager[None]],
        append: Append,
    ) -> None:
        self._sql, self._transaction, self._append = sql, transaction, append

    def keep(self, lease: Lease, kind: str, why: str, now: float) -> None:
        """Keep the GPU leased because of the process or memory that `lease.held_by` names, and
        add an event of the kind `kind`.
        """
        with self._transaction():
            self._sql(
                "INSERT INTO lease (gpu_uuid, job_id, attempt, host, held_by)"
                " VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (gpu_uuid, job_id, attempt) DO UPDATE SET held_by = excluded.held_by",
                (
                    lease.gpu_uuid,
                    lease.job_id,
                    lease.attempt,
                    lease.host,
                    shortened_reason(lease.held_by),
                ),
            )
            self._append(now, lease.job_id, lease.attempt, kind, None, None, shortened_reason(why))

    def leases(self) -> list[Lease]:
        """Return the leases with `held_by`, which are leases of ended attempts."""
        rows = self._sql("SELECT * FROM lease WHERE held_by IS NOT NULL ORDER BY gpu_uuid, job_id")
        return [Lease(**row) for row in rows]

    def ended_since(self, since: float) -> list[AttemptRow]:
        """Return the attempts that used GPUs and ended after `since` (seconds since the epoch)."""
        rows = self._sql(
            "SELECT * FROM attempt WHERE state = ? AND ended > ? AND gpu_uuids != ?",
            (ENDED, since, json.dumps([])),
        )
        return [attempt_row(row) for row in rows]


KIND = "uploaded"
"""Kind of the event for an upload that took place after the end of the job."""


class UploadTable:
    """Reads and records the uploads of finished jobs, in the table of attempts. `append` adds an
    event to the table of events.
    """

    def __init__(
        self,
        run: RunSql,
        transaction: Callable[[], AbstractContextManager[None]],
        append: Callable[..., int],
    ) -> None:
        self._sql, self._transaction, self._append = run, transaction, append

    def may_need(self, jobs: Sequence[int], since: float) -> list[int]:
        """Return the jobs among `jobs` that ended after `since` (seconds since the epoch) and may
        still need an upload of their checkpoint.
        """
        over = ", ".join(f"'{state}'" for state in sorted(states.TERMINAL))
        rows = self._sql(
            "SELECT id FROM job LEFT JOIN job_text ON number = text_number"
            f" WHERE id IN ({', '.join('?' * len(jobs))}) AND state IN ({over}) AND ended > ?"
            " AND instr(coalesce(full_text, spec), 'upload_to') ORDER BY id",
            (*jobs, since),
        )
        return [row["id"] for row in rows]

    def done(
        self,
        job_id: int,
        number: int,
        result: Mapping[str, Any],
        *,
        why: str,
        reasons: tuple[str | None, str | None],
        now: float,
    ) -> None:
        """Record that the upload for attempt `number` has ended.

        `result` is the new record of the attempt, and `why` is the text of the event. `reasons` has
        two texts: the job's reason when the upload began, and the new reason. If either text is
        None, the reason stays unchanged.
        """
        with self._transaction():
            found = self._sql(
                "UPDATE attempt SET result = ? WHERE job_id = ? AND number = ?",
                (json.dumps(result), job_id, number),
            )
            if None not in reasons:
                old, new = reasons  # a job that has continued since has another reason
                self._sql(
                    "UPDATE job SET reason = ? WHERE id = ? AND reason = ?",
                    (shortened_reason(new), job_id, old),
                )
            if found.rowcount:  # the job may have been removed meanwhile
                self._append(now, job_id, number, KIND, None, None, shortened_reason(why))
