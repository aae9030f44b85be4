"""Adds to a queue the jobs and attempts that only the run directories record, in one
transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zerotools
from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs import states
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.array_job_files import JOBS
from zerotoolsd.queue.rows import ENDED, AttemptRow
from zerotoolsd.queue.tables.usage_accounting import GpuTime, book_found

REBUILD = "rebuild"
"""Kind of the event that is added for each job that is changed here."""

_REASONS = {
    states.STOPPING: "cancelled",
    states.PAUSING: "paused",
    states.YIELDING: "stopped for another job",
}

RunSql = Callable[..., sqlite3.Cursor]
Append = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class FoundJob:
    """A job for which the run directories contain data that the queue does not have.

    Attributes:
        state: the state of the job in the queue; None if the queue does not have the job.
        spec: the job file, if the queue does not have the job.
        closed: the attempts that have ended but are still open in the queue: number of the attempt
            -> the record of its end.
        attempts: the attempts that the queue does not have. The last one is added as an open
            attempt, which has not ended.
        used: the GPU time of ended attempts, if known: number of the attempt -> GPU time.
    """

    id: int
    uid: int
    spec: Mapping[str, Any] | None
    default_output: str
    created: float
    state: str | None
    after: str
    closed: Mapping[int, Mapping[str, Any]]
    attempts: tuple[AttemptRow, ...]
    used: Mapping[int, GpuTime]
    restarts_used: int


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """All data of the run directories that the queue does not have.

    Attributes:
        highest_id: new jobs get numbers above this number.
        hold: the reason why the unfinished jobs in `found` are held; None: these jobs are not held.
        hold_others: whether all other waiting jobs are held for the same reason.
        unreadable: job number -> the reason why the state of that job is unknown. These jobs are
            also held.
    """

    found: Sequence[FoundJob]
    highest_id: int
    hold: str | None
    hold_others: bool
    unreadable: Mapping[int, str]

    def carry_out(self, sql: RunSql, append: Append, now: float) -> None:
        """Write the data into the queue, in the transaction of the caller. `now` is in seconds
        since the epoch.
        """
        for job in self.found:
            _import_job(sql, job, self.hold)
            number = job.attempts[-1].number
            append(now, job.id, number, REBUILD, job.state, job.after, self.hold)
        others = _waiting_ids(sql) if self.hold is not None and self.hold_others else []
        why = dict.fromkeys(others, self.hold or "") | dict(self.unreadable)
        taken = {job.id for job in self.found}
        _hold(sql, append, {job: why[job] for job in why if job not in taken}, now)
        reserve_numbers(sql, "job", self.highest_id)


def reserve_numbers(sql: RunSql, table: str, highest: int) -> None:
    """Let the next new row of `table`, `job` or `event`, get a number above `highest`."""
    if sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone() is None:
        sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, 0)", (table,))
    sql("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (highest, table))


def _import_job(sql: RunSql, job: FoundJob, hold: str | None) -> None:
    if job.spec is not None:
        name, output = job.spec.get("name"), job.spec.get("output_dir")
        sql(
            "INSERT INTO job (id, uid, name, spec, spec_version, output_dir, state, restarts_used,"
            " best_step, created) VALUES (?, ?, ?, ?, ?, ?, '', 0, 0, ?)",
            (
                *(job.id, job.uid, name if isinstance(name, str) else f"job-{job.id}"),
                *(json.dumps(job.spec, sort_keys=True), zerotools.__version__),
                *(output if isinstance(output, str) else job.default_output, job.created),
            ),
        )
    reason = _REASONS.get(job.after)
    sql(
        "UPDATE job SET state = ?, reason = ?, restarts_used = ?, eligible_at = NULL WHERE id = ?",
        (job.after, hold if job.after == states.HELD else reason, job.restarts_used, job.id),
    )
    for number, record in job.closed.items():
        sql(
            "UPDATE attempt SET state = ?, result = ?, ended = coalesce(ended, ?)"
            " WHERE job_id = ? AND number = ?",
            (ENDED, json.dumps(record), job.created, job.id, number),
        )
        sql("DELETE FROM lease WHERE job_id = ? AND attempt = ?", (job.id, number))
        book_found(sql, job.id, number, job.used.get(number))
    for row in job.attempts:
        _add(sql, row)
        if row.state == ENDED or row.number in job.used:
            book_found(sql, job.id, row.number, job.used.get(row.number))


def _add(sql: RunSql, row: AttemptRow) -> None:
    result = None if row.result is None else json.dumps(row.result)
    sql(
        "INSERT INTO attempt (job_id, number, token, state, run_dir, gpu_uuids, resumed_from,"
        " started, ended, result, started_clock, boot_id, host, world_size, gpu_part)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(row.job_id, row.number, row.token, row.state, row.run_dir),
            *(json.dumps(row.gpu_uuids), row.resumed_from, row.started, row.ended, result),
            *(row.started_clock, row.boot_id, row.host, row.world_size, row.gpu_part),
        ),
    )
    if row.state == ENDED:
        return
    share = _declared(sql, row.job_id)
    for uuid in row.gpu_uuids:  # if records name two attempts, the newer one has the lease
        whole = "" if share is None else " AND bytes IS NULL"
        sql(f"DELETE FROM lease WHERE gpu_uuid = ?{whole}", (uuid,))
        sql(
            "INSERT INTO lease (gpu_uuid, job_id, attempt, host, bytes) VALUES (?, ?, ?, ?, ?)",
            (uuid, row.job_id, row.number, row.host, share),
        )


def _declared(sql: RunSql, job_id: int) -> int | None:
    """Return the memory of each GPU, in bytes, that the job declares; None if it declares no memory
    or cannot be read.
    """
    row = sql(f"{JOBS} WHERE id = ?", (job_id,)).fetchone()
    try:
        return bytes_of(json.loads(row["spec"])["memory"]["per_gpu"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _waiting_ids(sql: RunSql) -> list[int]:
    rows = sql(
        "SELECT id FROM job WHERE state IN (?, ?, ?, ?, ?)",
        (states.ON_HOLD, states.WAITING, states.QUEUED, states.WAITING_RETRY, states.PAUSED),
    ).fetchall()
    return [row["id"] for row in rows]


def _hold(sql: RunSql, append: Append, why: Mapping[int, str], now: float) -> None:
    for job_id, reason in why.items():
        before = sql("SELECT state FROM job WHERE id = ?", (job_id,)).fetchone()["state"]
        sql(
            "UPDATE job SET state = ?, reason = ?, eligible_at = NULL WHERE id = ?",
            (states.HELD, reason, job_id),
        )
        append(now, job_id, None, lifecycle.HOLD, before, states.HELD, reason)
