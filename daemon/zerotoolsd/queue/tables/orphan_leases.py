"""Stores leases of GPUs that are still in use after their attempt has ended.

An ended attempt keeps its lease of a GPU while a process or memory of the attempt remains on the
GPU; `held_by` names that process or memory. If the process or memory is found only after the lease
was released, the lease is added again; by then another job may already use a part of the same GPU.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

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
