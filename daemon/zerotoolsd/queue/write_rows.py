"""Writes rows of the queue's database: the rows of a new job, and the rows of a change of a
job.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import zerotools
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import given_of, job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.start_conditions import Dependency
from zerotoolsd.queue import clocks
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.gpu_fault_fences import Fence
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.retries_by_cause import KILLED
from zerotoolsd.queue.rows import ENDED, RUNNING, ArrayPlace, AttemptRow, JobRow
from zerotoolsd.queue.sql_values import json_steps
from zerotoolsd.queue.tables.preemption_table import PreemptionTable
from zerotoolsd.queue.tables.usage_accounting import book_end

RunSql = Callable[..., sqlite3.Cursor]
"""A function that executes an SQL statement: (statement, values) -> cursor."""


class Changed(RuntimeError):
    """A change was refused, because the queue was changed in the meantime: the job has another
    state, or a GPU is already leased. Nothing was written.
    """


def _nothing(*_: object) -> None:
    """Do nothing. This is the default of `check` and `queued`."""


@dataclass(frozen=True, kw_only=True)
class JobParts:
    """The two stored forms of a job file: `spec` has only the keys that the user set, and `tree`
    has all keys.

    Each form is also kept as JSON text.
    """

    spec: JobSpec
    tree: Mapping[str, Any]
    full_text: str
    set_text: str

    @classmethod
    def of(cls, spec: JobSpec) -> JobParts:
        """Return the stored forms of the job file `spec`."""
        steps = cls.steps(spec)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                parts: JobParts = end.value
                return parts

    @classmethod
    def steps(cls, spec: JobSpec) -> Generator[None, None, JobParts]:
        """Do the work of `of` in short steps, and yield after each step, because a large job file
        takes long. The generator returns the forms.
        """
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
    """The data of a job that is to be added to the queue.

    Attributes:
        output_dir: the output directory; None: `default_output / <id> / "output"`.
        name: the name; None: `job-<id>`.
        now: the current time in seconds since the epoch.
        array: the position of the job in an array. The `id` in it is ignored.
        hold: the reason why the job is on hold from the start; None: it is not on hold.
        begin, after: the conditions for the start.
        parts: the stored forms of `spec`, if they exist already.
        text_number: the number of the job file, if the file is already written
            (`queue.array_job_files`).
        expected: the estimate of the job's memory (`queue.expected_memory`).
        check: called last in the transaction. An error that it raises refuses only this job.
        queued: called with the job's number, before the commit.
        followed_by: called with the job's row. Returns another job that is queued in the same
            transaction.
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
        """Return the first state of the job."""
        if self.hold is not None:
            return states.ON_HOLD
        waits = self.begin is not None or bool(self.after)
        return states.WAITING if waits else states.QUEUED


def refuse_other_size(jobs: Sequence[NewJob], known: int) -> None:
    """Raise Conflict if the user has already queued a different number of jobs (`known`) under
    this idempotency key.
    """
    if known != len(jobs):
        raise Conflict(
            f"the idempotency key {jobs[0].idempotency_key} was used for {known} jobs, but this "
            f"request has {len(jobs)}; use a new key"
        )


_COLUMNS = (
    *("id", "uid", "name", "spec", "spec_given", "text_number", "spec_version", "idempotency_key"),
    *("output_dir", "state", "reason", "restarts_used", "best_step", "created", "priority"),
    *("begin_at", "expected", "array_id", "array_index", "array_size", "array_label"),
)
INSERT_JOB = f"INSERT INTO job ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
"""SQL statement that writes the complete row of a job.

All columns are written at once, because a later UPDATE would write all pages of a long job file
again.
"""


@cache
def _version() -> str:
    return zerotools.__version__


def _named(new: NewJob, job_id: int) -> tuple[str, str]:
    """Return the name and the output directory of the job, with default values where the job does
    not set them.
    """
    return (
        new.name or f"job-{job_id}",
        new.output_dir or f"{new.default_output}/{job_id}/output",
    )


def values_of(new: NewJob, parts: JobParts, job_id: int, array_id: int) -> tuple[object, ...]:
    """Return the values of a job's row for the statement `INSERT_JOB`. `array_id` is the number
    of the job's array, or None.
    """
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
    """Return the row of a job that was added to the queue with `values_of`."""
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
    """Writes further rows in the transaction that changes a job's state. Made by `Store.change`."""

    def __init__(self, run: RunSql, job_id: int) -> None:
        self._sql = run
        self._job_id = job_id
        self.yields = PreemptionTable(run)

    def set_spec(
        self, name: str, spec_text: str, given_text: str, output_dir: str, expected: str | None
    ) -> None:
        """Replace the job file of the job. `spec_text` has all keys, and `given_text` has the
        keys that the user set.
        """
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
        """Set the earliest start of the job (seconds since the epoch); None: at any time."""
        self._sql("UPDATE job SET begin_at = ? WHERE id = ?", (begin, self._job_id))

    def set_priority(self, priority: int) -> None:
        """Set the priority of the job among the waiting jobs."""
        self._sql("UPDATE job SET priority = ? WHERE id = ?", (priority, self._job_id))

    def add_attempt(self, attempt: AttemptRow, gpu_bytes: int | None = None) -> None:
        """Add an attempt of the job, and lease its GPUs. `gpu_bytes` is the leased memory of each
        GPU; None: the whole GPU.

        Raises Changed if one of the GPUs is already leased as a whole, or if a GPU that is already
        shared is to be leased as a whole.
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
        """Record that the supervisor of attempt `number` has been running since `began`."""
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
        """Record that attempt `number` ended at the time `ended` because of `cause`. `result` is
        the record of the end.

        The GPUs become free. But if `held_by` names a process that still uses the GPUs, they stay
        leased.
        """
        book_end(self._sql, self._job_id, number, clocks.read_clocks(), ended)
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
        """Add a fence for a GPU, so that no job gets this GPU for a while."""
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
        """Record the end of every open attempt of the job, without reading the attempts' rows."""
        rows = self._sql(
            "SELECT number FROM attempt WHERE job_id = ? AND state != ?", (self._job_id, ENDED)
        )
        for row in rows.fetchall():
            self.attempt_ended(row["number"], ended, result, held_by, KILLED)
