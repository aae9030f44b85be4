"""The jobs of each user in the queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from zerotools.jobs import states

RunSql = Callable[..., sqlite3.Cursor]
_WAITING = [
    state for state in states.STATES if state not in states.TERMINAL and state not in states.ACTIVE
]
_BYTES = " + ".join(
    f"coalesce(length(CAST({text} AS BLOB)), 0)"
    for text in ("spec", "spec_given", "full_text", "set_text")
)


class UserCounts:
    """The owners of jobs, and counts of the jobs of one user."""

    def __init__(self, sql: RunSql) -> None:
        self._sql = sql
        self._known: dict[int, tuple[int, int]] = {}
        """By uid: the newest counted job, and the bytes of all jobs up to it."""

    def owner(self, job_id: int) -> int:
        """Return the uid that submitted a job. Raises KeyError."""
        row = self._sql("SELECT uid FROM job WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise KeyError(job_id)
        return int(row["uid"])

    def waiting(self, uid: int) -> int:
        """Return how many jobs of this user wait or are held."""
        marks = ", ".join("?" * len(_WAITING))
        row = self._sql(
            f"SELECT count(*) AS number FROM job WHERE state IN ({marks}) AND uid = ?",
            (*_WAITING, uid),
        ).fetchone()
        return int(row["number"])

    def text_bytes(self, uid: int) -> int:
        """Return the bytes of the records of all jobs of this user. Only jobs since the last call
        are read."""
        newest, size = self._known.get(uid, (0, 0))
        # "+": by the number of the job. The index of the uid would have all of the user's read.
        row = self._sql(
            f"SELECT max(id) AS newest, sum({_BYTES}) AS size FROM job LEFT JOIN job_text"
            " ON number = text_number WHERE +uid = ? AND id > ?",
            (uid, newest),
        ).fetchone()
        if row["newest"] is not None:
            newest, size = int(row["newest"]), size + int(row["size"])
            self._known[uid] = newest, size
        return size

    def outputs_before(self, uid: int, job_id: int, most: int) -> list[tuple[int, str]]:
        """Return the number and the `output_dir` of this user's jobs before `job_id`, the newest
        `most` first."""
        rows = self._sql(
            "SELECT id, output_dir FROM job WHERE +uid = ? AND id < ? ORDER BY id DESC LIMIT ?",
            (uid, job_id, most),
        )
        return [(row["id"], row["output_dir"]) for row in rows]

    def forget(self) -> None:
        """Forget the counts, because counted jobs may be gone."""
        self._known.clear()
