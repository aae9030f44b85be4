"""Reads and records the checkpoint uploads of finished jobs, in the records of their attempts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from zerotools.jobs import states
from zerotoolsd.queue.sql_values import shortened_reason

RunSql = Callable[..., sqlite3.Cursor]

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
