"""Reads and changes the table `dependency`, which stores which job starts after which other
jobs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from zerotools.jobs import states
from zerotoolsd.interface.start_conditions import ANY, Dependency
from zerotoolsd.queue.rows import JobRow

RunSql = Callable[..., sqlite3.Cursor]
RunMany = Callable[[str, Iterable[Sequence[object]]], None]
"""A function that executes an SQL statement once for each row: (statement, rows of values)."""

_AT_ONCE = 500
"""Largest number of job numbers in one SQL statement."""


_ENDS = {
    states.FAILED: "has failed",
    states.CANCELLED: "was cancelled",
    states.HALTED: "was stopped at its time limit",
}


def how_it_ended(state: str | None) -> str:
    """Return words for the final `state` of a job that did not succeed, such as `has failed`."""
    return _ENDS.get(state or "", "is no longer known")


@dataclass(frozen=True, kw_only=True)
class DependencyRow:
    """One dependency of a job: the other job that must end first, and how it must end.

    `state` is the current state of the other job. If that job was removed, `state` is its last
    state, or None if unknown.
    """

    on_id: int
    condition: str
    state: str | None

    @property
    def is_met(self) -> bool:
        """Return whether the other job has ended in the required way."""
        if self.condition == ANY:
            return self.state is None or self.state in states.TERMINAL
        return self.state == states.SUCCEEDED

    @property
    def is_spoiled(self) -> bool:
        """Return whether the other job can no longer end in the required way, so that this
        dependency can never be met.
        """
        return not self.is_met and (self.state is None or self.state in states.TERMINAL)

    @property
    def words(self) -> str:
        """Return the condition as text: `job 3 (running) to succeed`."""
        how = "end" if self.condition == ANY else "succeed"
        state = states.display_text(self.state or "unknown")
        return f"job {self.on_id} ({state}) to {how}"


class DependencyTable:
    """Reads and changes the table `dependency`, in the transaction of the caller.

    `run` executes a statement, and `run_many` executes a statement for each of several rows.
    """

    def __init__(self, run: RunSql, run_many: RunMany) -> None:
        self._sql, self._sql_many = run, run_many

    def add(self, jobs: Iterable[tuple[int, Iterable[Dependency]]]) -> None:
        """Add the dependencies of several jobs. `jobs` contains pairs: the number of a job, and its
        dependencies.
        """
        self._sql_many(
            "INSERT OR REPLACE INTO dependency (job_id, on_id, condition) VALUES (?, ?, ?)",
            ((job_id, each.job_id, each.condition) for job_id, after in jobs for each in after),
        )

    def replace(self, job_id: int, after: Iterable[Dependency]) -> None:
        """Replace the dependencies of `job_id`."""
        self._sql("DELETE FROM dependency WHERE job_id = ?", (job_id,))
        self.add([(job_id, after)])

    def take_any_end(self, job_id: int, on_ids: Iterable[int]) -> None:
        """Change the dependencies of the job `job_id` on the jobs `on_ids`: any end of those jobs
        is accepted from now on, even a failure.
        """
        for on_id in on_ids:
            self._sql(
                "UPDATE dependency SET condition = ? WHERE job_id = ? AND on_id = ?",
                (ANY, job_id, on_id),
            )

    def removed(self, job: JobRow) -> None:
        """Store the last state of `job` in the dependencies of other jobs on `job`. Call this
        before `job` is removed.
        """
        self._sql("DELETE FROM dependency WHERE job_id = ?", (job.id,))
        self._sql("UPDATE dependency SET ended = ? WHERE on_id = ?", (job.state, job.id))

    def of(self, job_id: int) -> list[DependencyRow]:
        """Return the dependencies of the job `job_id`, ordered by the number of the other job."""
        rows = self._sql(
            "SELECT on_id, condition, coalesce(other.state, dependency.ended) AS state"
            " FROM dependency LEFT JOIN job AS other ON other.id = on_id"
            " WHERE job_id = ? ORDER BY on_id",
            (job_id,),
        )
        return [DependencyRow(**row) for row in rows]

    def dependents(self, on_ids: Collection[int]) -> set[int]:
        """Return the numbers of the jobs that depend on any of the jobs `on_ids`."""
        wanted, found = list(on_ids), set[int]()
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            rows = self._sql(f"SELECT job_id FROM dependency WHERE on_id IN ({marks})", part)
            found |= {row["job_id"] for row in rows}
        return found
