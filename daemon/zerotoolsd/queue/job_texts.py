"""Job files that are written before their jobs.

The job files of an array may take 32 MiB, and all its jobs are queued in one transaction. So that
this transaction is short, the files are written first, in several transactions of their own. The
jobs then refer to them. A file that no job refers to belongs to a submit that was refused or that
did not come to its end. It is deleted at once, or with the next that is written or deleted where
the disk was full or the queue locked, or at the next start where the daemon was killed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

JOBS = (
    "SELECT job.*, coalesce(full_text, spec) AS spec, coalesce(set_text, spec_given) AS spec_given"
    " FROM job LEFT JOIN job_text ON number = text_number"
)
"""Selects jobs with their files. Of two columns of one name `queue.values.loaded_row` takes the
second."""
SLICE_CHARACTERS = 200_000
"""Characters after which the next files are written in another transaction."""

RunSql = Callable[..., sqlite3.Cursor]


def slices(texts: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Divide `texts` into parts of few characters, each of at least one pair."""
    first, size = 0, 0
    for index, pair in enumerate(texts):
        size += sum(map(len, pair))
        if size >= SLICE_CHARACTERS:
            yield texts[first : index + 1]
            first, size = index + 1, 0
    if first < len(texts):
        yield texts[first:]


class JobTexts:
    """The table `job_text`, by `sql`; each change is one `transaction`."""

    def __init__(
        self, sql: RunSql, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._sql, self._transaction = sql, transaction
        self._unused = set[int]()
        """Files of refused submits that could not be deleted yet."""

    def write(self, texts: Sequence[tuple[str, str]]) -> list[int]:
        """Write job files, each with all keys and with those that were set; return the number of
        each."""
        written = []
        with self._transaction():
            self._delete_all(self._unused)
            for pair in texts:
                row = self._sql("INSERT INTO job_text (full_text, set_text) VALUES (?, ?)", pair)
                written.append(row.lastrowid or 0)
        self._unused.clear()
        return written

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete those of these files that no job refers to. Where that fails they are deleted with
        the next."""
        self._unused |= {*numbers}
        with self._transaction():
            self._delete_all(self._unused)
        self._unused.clear()

    def _delete_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._sql(
                "DELETE FROM job_text WHERE number = ?"
                " AND NOT EXISTS (SELECT 1 FROM job WHERE text_number = number)",
                (number,),
            )

    def delete_unused(self) -> int:
        """Delete all files that no job refers to; return how many there were. Not while a submit
        writes files."""
        used = "SELECT text_number FROM job WHERE text_number IS NOT NULL"
        if self._sql(f"SELECT 1 FROM job_text WHERE number NOT IN ({used})").fetchone() is None:
            return 0
        with self._transaction():
            return self._sql(f"DELETE FROM job_text WHERE number NOT IN ({used})").rowcount
