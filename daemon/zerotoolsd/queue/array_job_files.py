"""Writes the job files of an array, in several transactions, before its jobs are queued.

The job files of an array may take 32 MiB, and all its jobs are queued in one transaction. To keep
this transaction short, the files are written first, in separate transactions. Each job then refers
to its file by number. A file that no job refers to belongs to a submit that was refused or
interrupted. Such a file is deleted at once. If the disk was full or the queue locked, it is deleted
with the next write or delete; if the daemon was killed, at the next start.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

JOBS = (
    "SELECT job.*, coalesce(full_text, spec) AS spec, coalesce(set_text, spec_given) AS spec_given"
    " FROM job LEFT JOIN job_text ON number = text_number"
)
"""SQL statement that selects jobs together with their job files.

Two columns may have the same name; `sql_values.loaded_row` then takes the second one.
"""
SLICE_CHARACTERS = 200_000
"""Number of characters after which the remaining job files are written in another transaction."""

DELETE_SECONDS = 0.003
"""Seconds after which the remaining job files are deleted in another transaction."""

RunSql = Callable[..., sqlite3.Cursor]


def sliced_texts(texts: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Divide `texts` (pairs of texts) into slices. Each slice except the last has SLICE_CHARACTERS
    characters or a little more.
    """
    first, size = 0, 0
    for index, pair in enumerate(texts):
        size += sum(map(len, pair))
        if size >= SLICE_CHARACTERS:
            yield texts[first : index + 1]
            first, size = index + 1, 0
    if first < len(texts):
        yield texts[first:]


class JobFileTable:
    """Reads and changes the table `job_text`, which contains job files.

    `sql` executes a statement. `transaction` begins a transaction; each change is one.
    """

    def __init__(
        self, sql: RunSql, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._sql, self._transaction = sql, transaction
        self._refused = dict[int, None]()
        """Numbers of the job files of refused submits that are not deleted yet."""

    def write(self, texts: Sequence[tuple[str, str]]) -> list[int]:
        """Write job files into the table. Return the number of each file in the table.

        A job file is a pair of texts: one with all keys, and one with only the keys that the
        user set.
        """
        written = []
        with self._transaction():
            deleted = self._delete_some()
            for pair in texts:
                row = self._sql("INSERT INTO job_text (full_text, set_text) VALUES (?, ?)", pair)
                written.append(row.lastrowid or 0)
        self._forget(deleted)
        return written

    def refuse(self, numbers: Iterable[int]) -> None:
        """Mark the job files `numbers` of a refused submit for deletion. A file that a job refers
        to is not deleted.
        """
        self._refused |= dict.fromkeys(numbers)

    def delete_refused(self) -> bool:
        """Delete marked job files, at most for DELETE_SECONDS. Return whether any are left."""
        with self._transaction():
            deleted = self._delete_some()
        self._forget(deleted)
        return bool(self._refused)

    def _delete_some(self) -> list[int]:
        deleted, until = list[int](), time.monotonic() + DELETE_SECONDS
        for number in self._refused:
            self._sql(
                "DELETE FROM job_text WHERE number = ?"
                " AND NOT EXISTS (SELECT 1 FROM job WHERE text_number = number)",
                (number,),
            )
            deleted.append(number)
            if time.monotonic() > until:
                break
        return deleted

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._refused.pop(number, None)

    def delete_unused(self) -> int:
        """Delete all job files that no job refers to. Return the number of deleted files.

        Do not call this while a submit is writing files.
        """
        used = "SELECT text_number FROM job WHERE text_number IS NOT NULL"
        if self._sql(f"SELECT 1 FROM job_text WHERE number NOT IN ({used})").fetchone() is None:
            return 0
        with self._transaction():
            return self._sql(f"DELETE FROM job_text WHERE number NOT IN ({used})").rowcount
