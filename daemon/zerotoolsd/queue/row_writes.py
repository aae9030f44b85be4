"""The writes of the store: the rows of a new job, and of a change of a job."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import zerotools
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import given_of, job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.queue_terms import Dependency
from zerotoolsd.queue import clocks
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.retry_rules import KILLED
from zerotoolsd.queue.rows import ENDED, RUNNING, ArrayPlace, AttemptRow, Fence, JobRow
from zerotoolsd.queue.stored_values import json_steps
from zerotoolsd.queue.tables.preemption_table import PreemptionTable
from zerotoolsd.queue.tables.usage_accounting import book_end

RunSql = Callable[..., sqlite3.Cursor]
"""(statement, values) -> cursor."""
RunMany = Callable[[str, Iterable[Sequence[object]]], None]
"""(statement, rows of values)."""


class Changed(RuntimeError):
    """The job was no longer in the state from which the change started. The store is unchanged."""


def _nothing(*_: object) -> None:
    """Default for `check` and `queued`: does nothing."""


@dataclass(frozen=True, kw_only=True)
class JobParts:
    """The texts of a job file as they are stored.

    `spec` has the keys that were set, `tree` has all keys; both also as JSON text.
    """

    spec: JobSpec
    tree: Mapping[str, Any]
    full_text: str
    set_text: str

    @classmethod
    def of(cls, spec: JobSpec) -> JobParts:
        """Return the parts of a job file."""
        steps = cls.steps(spec)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                parts: JobParts = end.value
                return parts

    @classmethod
    def steps(cls, spec: JobSpec) -> Generator[None, None, JobParts]:
        """Make the parts in steps, as a generator, because a large job file takes long."""
        tree = job_to_dict(spec)
        yield
        given = given_of(spec)
        yield
        full_text = yield from json_steps(tree)
        yield
        set_text = yield from json_steps(given)
        yield
        spec = replace(spec, given=given)
        return cls(spec=spec, tree=tree, full_text=full_text, set_text=set_text)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to queue.

    Without `output_dir` its output is `default_output / <id> / "output"`; without `name` it is
    `job-<id>`. `now` is in seconds since the epoch. `array` is its position in an array; the id
    there is not used. `hold` is the reason for a hold from the start; `begin` and `after` are the
    conditions of its start. `parts` are the parts of `spec`, if they were made before.
    `text_number` is the number of its job file, if that was written before
    (`queue.job_file_slices`). `expected` is its memory estimate (`queue.expected_memory`). `check`
    is called last in the transaction: its errors refuse only this job. `queued` is called with the
    job's number, before the commit. `followed_by` returns, for the job's row, another job to queue
    in the same transaction.
    """

    uid: int
    name: str | None
    spec: JobSpec
    output_dir: str | None
    default_output: Path
    idempotency_key: str | None
    now: float
    priority: int = 0
    hold: str | None = None
    begin: float | None = None
    after: tuple[Dependency, ...] = ()
    array: ArrayPlace | None = None
    parts: JobParts | None = None
    text_number: int | None = None
    expected: str | None = None
    check: Callable[[], None] = _nothing
    queued: Callable[[int], None] = _nothing
    followed_by: Callable[[JobRow], NewJob] | None = None

    @property
    def state(self) -> str:
        """The first state of the job."""
        if self.hold is not None:
            return states.ON_HOLD
        waits = self.begin is not None or bool(self.after)
        return states.WAITING if waits else states.QUEUED


def refuse_other_size(jobs: Sequence[NewJob], known: int) -> None:
    """Raise Conflict if another number of jobs was queued under this idempotency key."""
    if known != len(jobs):
        raise Conflict(
            f"the idempotency key {jobs[0].idempotency_key} was used for {known} jobs, and these "
            f"are {len(jobs)}; use a new key"
        )


_COLUMNS = (
    *("id", "uid", "name", "spec", "spec_given", "text_number", "spec_version", "idempotency_key"),
    *("output_dir", "state", "reason", "restarts_used", "best_step", "created", "priority"),
    *("begin_at", "expected", "array_id", "array_index", "array_size", "array_label"),
)
INSERT_JOB = f"INSERT INTO job ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
"""Statement that writes a job's row. A later UPDATE would write all pages of a long job file
again."""


@cache
def _version() -> str:
    return zerotools.__version__


def _named(new: NewJob, job_id: int) -> tuple[str, str]:
    """Return the name of a job, and its position in an array."""
    return (
        new.name or f"job-{job_id}",
        new.output_dir or f"{new.default_output}/{job_id}/output",
    )


def values_of(new: NewJob, parts: JobParts, job_id: int, array_id: int) -> tuple[object, ...]:
    """Return the values of a job for `INSERT_JOB`. `array_id` is the number of its array, or
    None."""
    texts = (parts.full_text, parts.set_text) if new.text_number is None else ("", None)
    name, place = _named(new, job_id)
    array = new.array
    return (
        *(job_id, new.uid, name, *texts, new.text_number, _version()),
        *(new.idempotency_key, place, new.state, new.hold, 0, 0, new.now, new.priority, new.begin),
        *(new.expected, array and array_id, array and array.index, array and array.size),
        array and array.label,
    )


def row_of(new: NewJob, parts: JobParts, job_id: int, array_id: int) -> JobRow:
    """Return the row of a job that was queued with `values_of`."""
    name, place = _named(new, job_id)
    array = new.array
    if array is not None:
        array = ArrayPlace(id=array_id, index=array.index, size=array.size, label=array.label)
    row = JobRow(
        id=job_id,
        uid=new.uid,
        name=name,
        spec_text=parts.full_text,
        given_text=parts.set_text,
        spec_version=_version(),
        output_dir=place,
        standing=JobStatus(state=new.state, reason=new.hold),
        created=new.now,
        started=None,
        ended=None,
        priority=new.priority,
        begin=new.begin,
        array=array,
        expected=new.expected,
    )
    return row.with_reading(parts.spec)


class Change:
    """Writes the other rows of a job's transaction. `Store.change` makes it."""

    def __init__(self, run: RunSql, job_id: int) -> None:
        self._sql = run
        self._job_id = job_id
        self.yields = PreemptionTable(run)

    def set_spec(
        self, name: str, spec_text: str, given_text: str, output_dir: str, expected: str | None
    ) -> None:
        """Set another job file, which this version has read."""
        self._sql(
            "DELETE FROM job_text WHERE number = (SELECT text_number FROM job WHERE id = ?)",
            (self._job_id,),
        )
        self._sql(
            "UPDATE job SET name = ?, spec = ?, spec_given = ?, spec_version = ?, output_dir = ?,"
            " expected = ?, text_number = NULL WHERE id = ?",
            (
                *(name, spec_text, given_text, zerotools.__version__, output_dir, expected),
                self._job_id,
            ),
        )

    def set_begin(self, begin: float | None) -> None:
        """Set the time before which the job does not start."""
        self._sql("UPDATE job SET begin_at = ? WHERE id = ?", (begin, self._job_id))

    def set_priority(self, priority: int) -> None:
        """Set the priority among waiting jobs."""
        self._sql("UPDATE job SET priority = ? WHERE id = ?", (priority, self._job_id))

    def add_attempt(self, attempt: AttemptRow, gpu_bytes: int | None = None) -> None:
        """Add an attempt, with leases of its GPUs: `gpu_bytes` of each, or whole GPUs (None).

        Raises Changed if a GPU is leased as a whole, or is shared and wanted as a whole.
        """
        row = attempt
        self._sql(
            "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids, resumed_from,"
            " host, gpu_part, world_size, gpu_baseline)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(row.job_id, row.number, row.token, row.state, row.run_dir),
                *(json.dumps(row.gpu_uuids), row.resumed_from, row.host, row.gpu_part),
                *(row.world_size, json.dumps(dict(row.gpu_baseline))),
            ),
        )
        for uuid in row.gpu_uuids:
            before = self._sql("SELECT * FROM lease WHERE gpu_uuid = ?", (uuid,))
            for lease in before.fetchall():
                own = (lease["job_id"], lease["attempt"]) == (row.job_id, row.number)
                if own or lease["bytes"] is None or gpu_bytes is None:
                    raise Changed(f"{uuid} is leased already")
            self._sql(
                "INSERT INTO lease (gpu_uuid, job_id, attempt, host, bytes) VALUES (?, ?, ?, ?, ?)",
                (uuid, row.job_id, row.number, row.host, gpu_bytes),
            )

    def attempt_started(self, number: int, began: Moment) -> None:
        """Record that the supervisor of attempt `number` runs since `began`."""
        self._sql(
            "UPDATE attempt SET state = ?, started = ?, started_clock = ?, boot_id = ?"
            " WHERE job_id = ? AND number = ?",
            (RUNNING, began.time, began.clock, began.boot_id, self._job_id, number),
        )
        self._sql(
            "UPDATE job SET started = coalesce(started, ?) WHERE id = ?", (began.time, self._job_id)
        )

    def attempt_ended(
        self,
        number: int,
        ended: float,
        result: Mapping[str, Any],
        held_by: str | None,
        cause: str | None = None,
    ) -> None:
        """Record that attempt `number` has ended by `cause`. Its GPUs are free unless a process
        holds them."""
        book_end(self._sql, self._job_id, number, clocks.now(), ended)
        self._sql(
            "UPDATE attempt SET state = ?, ended = ?, result = ?, cause = ?"
            " WHERE job_id = ? AND number = ?",
            (ENDED, ended, json.dumps(result), cause, self._job_id, number),
        )
        key = (self._job_id, number)
        if held_by is None:
            self._sql("DELETE FROM lease WHERE job_id = ? AND attempt = ?", key)
        else:
            self._sql(
                "UPDATE lease SET held_by = ? WHERE job_id = ? AND attempt = ?", (held_by, *key)
            )

    def fence(self, fence: Fence) -> None:
        """Fence a GPU: no job gets it for a while."""
        self._sql(
            "INSERT OR REPLACE INTO fence (gpu_uuid, since, until, boot_id, job_id, attempt, why)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(fence.gpu_uuid, fence.since, fence.until, fence.boot_id),
                *(fence.job_id, fence.attempt, fence.why),
            ),
        )

    def open_attempts_ended(
        self, ended: float, result: Mapping[str, Any], held_by: str | None
    ) -> None:
        """Record the end of every open attempt of the job, without reading their rows."""
        rows = self._sql(
            "SELECT number FROM attempt WHERE job_id = ? AND state != ?", (self._job_id, ENDED)
        )
        for row in rows.fetchall():
            self.attempt_ended(row["number"], ended, result, held_by, KILLED)
