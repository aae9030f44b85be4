"""Leases of ended attempts: a GPU that a remainder of its job still uses stays leased to it.

`held_by` names the remainder: a process that does not end, or memory that is still in use. It may
be found after the lease was released, and another job may then have a part of the same GPU.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

from zerotoolsd.queue.rows import ENDED, AttemptRow, Lease, attempt_row
from zerotoolsd.queue.values import short

RunSql = Callable[..., sqlite3.Cursor]
Append = Callable[..., int]
"""(now, job, attempt, kind, from, to, why): an event."""


class OrphanLeases:
    """The leases of ended attempts. Each change is a separate transaction."""

    def __init__(
        self,
        sql: RunSql,
        transaction: Callable[[], AbstractContextManager[None]],
        append: Append,
    ) -> None:
        self._sql, self._transaction, self._append = sql, transaction, append

    def hold(self, lease: Lease, kind: str, why: str, now: float) -> None:
        """Keep the GPU leased for the process or memory in `held_by`, with an event."""
        with self._transaction():
            self._sql(
                "INSERT INTO lease (gpu_uuid, job_id, attempt, host, held_by)"
                " VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (gpu_uuid, job_id, attempt) DO UPDATE SET held_by = excluded.held_by",
                (lease.gpu_uuid, lease.job_id, lease.attempt, lease.host, short(lease.held_by)),
            )
            self._append(now, lease.job_id, lease.attempt, kind, None, None, short(why))

    def leases(self) -> list[Lease]:
        """Return the leases of ended attempts with a remainder."""
        rows = self._sql("SELECT * FROM lease WHERE held_by IS NOT NULL ORDER BY gpu_uuid, job_id")
        return [Lease(**row) for row in rows]

    def ended_since(self, since: float) -> list[AttemptRow]:
        """Return the attempts on GPUs that ended after `since`, in seconds since the epoch."""
        rows = self._sql(
            "SELECT * FROM attempt WHERE state = ? AND ended > ? AND gpu_uuids != ?",
            (ENDED, since, json.dumps([])),
        )
        return [attempt_row(row) for row in rows]
