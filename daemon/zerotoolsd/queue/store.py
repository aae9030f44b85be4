"""Reads and changes the queue. When a method that changes the queue returns, the change is on the
disk.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotoolsd.interface.api_types import Conflict, Event
from zerotoolsd.interface.start_conditions import Drain
from zerotoolsd.queue import clocks
from zerotoolsd.queue.array_job_files import JOBS, JobFileTable
from zerotoolsd.queue.database_disk_reserve import DiskReserve
from zerotoolsd.queue.gpu_fault_fences import Fence
from zerotoolsd.queue.insert_recovered_jobs import Rebuild, reserve_numbers
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.rows import ENDED, AttemptRow, JobRow, Lease, attempt_row, job_row
from zerotoolsd.queue.schema import LastChange, highest_numbers, open_database, refuse_older
from zerotoolsd.queue.sql_values import loaded_row, shortened_reason, sql_value, stored_row
from zerotoolsd.queue.tables.dependency_table import DependencyTable
from zerotoolsd.queue.tables.notice_outbox import Notice, Outbox
from zerotoolsd.queue.tables.orphan_leases import OrphanLeases
from zerotoolsd.queue.tables.preemption_table import PreemptionTable
from zerotoolsd.queue.tables.upload_table import UploadTable
from zerotoolsd.queue.tables.usage_accounting import UsageAccounting, UserCounts, book_running
from zerotoolsd.queue.transactions import Transactions
from zerotoolsd.queue.write_rows import (
    INSERT_JOB,
    Change,
    Changed,
    JobParts,
    NewJob,
    refuse_other_size,
    row_of,
    values_of,
)

BUSY_MILLISECONDS = 20
CHECKPOINT_PAGES = 256
"""If SQLite's log has this many pages, a commit copies them into the database. Copying more pages
at a time would take long.
"""

_INSERT_EVENT = (
    "INSERT INTO event (time, job_id, attempt, kind, from_state, to_state, why)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class Store:
    """The queue in one state directory. Only one process and one thread may use it."""

    def __init__(self, state_dir: Path, *, rebuild: bool = False) -> None:
        """Open the database in `state_dir`. Raises the errors of `open_database`.

        With `rebuild`, the queue is opened even if it is older than its run directories.
        """
        self._connection = open_database(state_dir, rebuild=rebuild)
        self.transactions = Transactions(
            self._connection, lambda text: self._sql(text), self._note_commit, self._note_undone
        )
        self._transaction = self.transactions.one
        self.disk_reserve, self.gpu_use = (
            DiskReserve(state_dir, self._connection),
            UsageAccounting(self._connection),
        )
        self.of_user = UserCounts(self._sql)
        self.texts = JobFileTable(self._sql, self._transaction)
        self.outbox = Outbox(self._sql, self._transaction)
        self.tell: Callable[..., Iterable[Notice]] = lambda *change: ()
        self.on_commit: Callable[[float], None] = lambda seconds: None
        self.dependencies = DependencyTable(self._sql, self._sql_many)
        self.drains = DrainTable(self._sql)
        self.yields = PreemptionTable(self._sql, self._transaction)
        self.outlived = OrphanLeases(self._sql, self._transaction, self._append)
        self.uploads = UploadTable(self._sql, self._transaction, self._append)
        self._connection.row_factory = loaded_row
        self._connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            # Waits for another process's lock must not block the event loop.
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            if not rebuild:
                refuse_older(state_dir, self.last_change)
            highest_change, highest_id = highest_numbers(state_dir)
            self.noted_id = max(highest_id, self.highest_id)
            self._mark = LastChange(state_dir, self.last_change, self.noted_id)
            if self.last_change < highest_change:  # clients follow events by their numbers
                with self._transaction():
                    reserve_numbers(self._sql, "event", highest_change)
            self.texts.delete_unused()
        except BaseException:  # undone, and raised again
            self.disk_reserve.close()
            raise

    def _sql(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute an SQL statement with these values, and return the cursor. Raises Unstorable.

        All values reach the database through this method.
        """
        return self._connection.execute(statement, [sql_value(value) for value in values])

    def _sql_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute an SQL statement once for each row of values. Raises Unstorable."""
        self._connection.executemany(statement, map(stored_row, rows))

    def close(self) -> None:
        """Close the store. No method may be called afterwards."""
        self.disk_reserve.close()
        self._mark.close()

    @property
    def last_change(self) -> int:
        """Return the number of the newest event; 0 if there is no event."""
        return self._sequence("event")

    @property
    def highest_id(self) -> int:
        """Return the highest number that a job of this queue ever had; 0 if there was no job.

        `noted_id` may be higher, because it includes earlier queues in the same directory.
        """
        return self._sequence("job")

    def _sequence(self, table: str) -> int:
        row = self._sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return 0 if row is None else int(row["seq"])

    @property
    def schema(self) -> int:
        """Return the version of the database schema."""
        return int(self._sql("PRAGMA user_version").fetchone()["user_version"])

    def _note_commit(self, seconds: float) -> None:
        self.on_commit(seconds)
        self._mark.note(self.last_change, self.highest_id)

    def _note_undone(self, error: BaseException) -> None:
        self.of_user.forget()
        self.disk_reserve.handle_error(error)

    def submit(self, **values: Any) -> tuple[JobRow, bool]:
        """Add the job `NewJob(**values)` to the queue. Return the job, and whether it is new.

        The job is not new if the user has already submitted the same job with this idempotency key.
        Raises Conflict if the key was used for another job.
        """
        (result,) = self.submit_all([NewJob(**values)])
        if isinstance(result, Exception):
            raise result
        return result

    def submit_array(
        self, jobs: Sequence[NewJob], check: Callable[[], None] = lambda: None
    ) -> tuple[Iterator[JobRow], bool]:
        """Add all of these jobs to the queue, or no job at all. Return the jobs, and whether they
        are new.

        The jobs are not new if the user has already submitted them with the idempotency key of the
        first job. `check` is called first in the transaction, and then the `check` of each job. The
        rows of new jobs are made when they are read, because an array may have 1,000 jobs. Raises
        the errors of `submit`.
        """
        parts = [new.parts or JobParts.of(new.spec) for new in jobs]
        with self._transaction():
            if (first := self._job_of_key(jobs[0], parts[0])) is not None:
                known = self.jobs(array=first.array.id)[::-1] if first.array else [first]
                refuse_other_size(jobs, len(known))
                return iter(known), False
            check()
            number = self._insert(jobs, parts)
        return map(row_of, jobs, parts, count(number), repeat(number)), True

    def submit_all(self, jobs: Sequence[NewJob]) -> list[tuple[JobRow, bool] | Exception]:
        """Add many independent jobs to the queue in one transaction. Return, for each job, the
        result of `submit` or the error.

        Raises sqlite3.OperationalError if no job was added.
        """
        results: list[tuple[JobRow, bool] | Exception] = []
        with self._transaction():
            for new in jobs:
                self._sql("SAVEPOINT one")
                try:
                    results.append(self._submit(new))
                except sqlite3.OperationalError:
                    raise
                except Exception as error:  # of this one alone
                    self._sql("ROLLBACK TO one")
                    results.append(error)
                self._sql("RELEASE one")
        return results

    def _submit(self, new: NewJob) -> tuple[JobRow, bool]:
        parts = new.parts or JobParts.of(new.spec)
        if (old := self._job_of_key(new, parts)) is not None:
            return old, False
        number = self._insert([new], [parts])
        return row_of(new, parts, number, number), True

    def _job_of_key(self, new: NewJob, parts: JobParts) -> JobRow | None:
        """Return the job that was queued before with the idempotency key of `new`; None if there is
        no such job. Raises Conflict if that job differs from `new`.
        """
        if (old := self.by_key(new.uid, new.idempotency_key)) is None:
            return None
        read = old.reading.spec
        # If the same job is sent again after an upgrade, it may have got other defaults.
        is_same = read is not None and (
            job_to_dict(read) == parts.tree or old.given_text == parts.set_text
        )
        if not is_same:
            raise Conflict(
                f"the idempotency key {new.idempotency_key} was used for job {old.id} with a "
                "different job file; use a new key"
            )
        return old

    def _insert(self, jobs: Sequence[NewJob], parts: Sequence[JobParts]) -> int:
        """Add the rows of several jobs with few SQL statements. Return the first job's number."""
        first = self.highest_id + 1
        values, events = [], []
        for job_id, (new, part) in enumerate(zip(jobs, parts, strict=True), first):
            new.check()
            values.append(values_of(new, part, job_id, first))
            events.append((new.now, job_id, None, "submit", None, new.state, new.hold))
        self._sql_many(INSERT_JOB, values)
        self._sql_many(_INSERT_EVENT, events)
        self.dependencies.add((job_id, new.after) for job_id, new in enumerate(jobs, first))
        followers = []
        for job_id, (new, part) in enumerate(zip(jobs, parts, strict=True), first):
            new.queued(job_id)
            if new.followed_by is not None:
                followers.append(new.followed_by(row_of(new, part, job_id, first)))
        if followers:
            self._insert(followers, [new.parts or JobParts.of(new.spec) for new in followers])
        return first

    def by_key(self, uid: int, key: str | None) -> JobRow | None:
        """Return the job that the user `uid` submitted with the idempotency key `key`; None if
        there is no such job.
        """
        if key is None:
            return None
        row = self._sql(f"{JOBS} WHERE uid = ? AND idempotency_key = ?", (uid, key)).fetchone()
        return None if row is None else job_row(row)

    @contextmanager
    def change(
        self,
        job: JobRow,
        after: JobStatus,
        kind: str,
        *,
        now: float,
        attempt: int | None = None,
        ended: float | None = None,
        why: str | None = None,
    ) -> Iterator[Change]:
        """Return a context manager that changes the state of `job` to `after` in one transaction,
        and adds an event of the kind `kind`.

        The body of the context gets a `Change`, with which it writes further rows in the same
        transaction. `ended` is the time at which the job ended (default: `now`). `why` is the text
        of the event (default: the reason in `after`). Raises Changed if the stored state of the job
        is no longer `job.state`.
        """
        with self._transaction():
            over = (ended or now) if after.state in states.TERMINAL else None
            reason = shortened_reason(after.reason)
            values = (after.state, reason, after.restarts_used, after.best_step)
            cursor = self._sql(
                "UPDATE job SET state = ?, reason = ?, restarts_used = ?, best_step = ?,"
                " eligible_at = ?, ended = ? WHERE id = ? AND state = ?",
                (*values, after.eligible_at, over, job.id, job.state),
            )
            if cursor.rowcount != 1:
                raise Changed(f"job {job.id} is no longer {states.display_text(job.state)}")
            yield Change(self._sql, job.id)
            self.gpu_use.bookings += 1
            said = reason if why is None else shortened_reason(why)
            seq = self._append(now, job.id, attempt, kind, job.state, after.state, said)
            self.outbox.add(self.tell(job, after, seq, attempt, now))

    def _append(self, now: float, *values: object) -> int:
        """Add an event to the table of events. Return the number of the event."""
        cursor = self._sql(_INSERT_EVENT, (now, *values))
        return cursor.lastrowid or 0

    def note(self, lease: Lease, kind: str, why: str, now: float) -> None:
        """Add an event about the attempt that has the lease `lease`. The lease is not changed."""
        with self._transaction():
            self._append(now, lease.job_id, lease.attempt, kind, None, None, shortened_reason(why))

    def set_drain(self, drain: Drain | None, who: str, now: float) -> None:
        """Set a drain, so that no job starts. With None, remove the drain. `who` is the user who
        sets or removes it.
        """
        with self._transaction():
            self.drains.put(drain)
            kind, why = ("undrain", who) if drain is None else ("drain", drain.sentence)
            self._append(now, None, None, kind, None, None, why)

    def book_gpu_use(self) -> None:
        """Book the GPU time of all running attempts up to now."""
        with self._transaction():
            self.gpu_use.bookings += book_running(self._sql, clocks.read_clocks())

    def release(self, lease: Lease, now: float) -> None:
        """Release the lease of a GPU after the attempt's last process on this GPU has ended."""
        with self._transaction():
            key = lease.gpu_uuid, lease.job_id, lease.attempt
            self._sql("DELETE FROM lease WHERE (gpu_uuid, job_id, attempt) = (?, ?, ?)", key)
            why = f"{lease.gpu_uuid} is free again"
            self._append(now, lease.job_id, lease.attempt, "release", None, None, why)

    def rebuild(self, found: Rebuild, now: float) -> None:
        """Add the jobs and attempts found in run directories (`queue.insert_recovered_jobs`)."""
        with self._transaction():
            found.carry_out(self._sql, self._append, now)

    def state_counts(self) -> dict[str, int]:
        """Return the number of jobs in each state. States without jobs are left out."""
        rows = self._sql("SELECT state, count(*) AS jobs FROM job GROUP BY state")
        return {row["state"]: row["jobs"] for row in rows}

    def states(self) -> dict[int, str]:
        """Return the state of every job: job number -> state."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return dict(cursor.execute("SELECT id, state FROM job"))

    def remove(self, job: JobRow, now: float, why: str) -> None:
        """Delete an ended job with its attempts and events. No later job gets its number.

        Raises Changed if the stored state of the job is no longer `job.state`.
        """
        with self._transaction():
            self._sql("DELETE FROM attempt WHERE job_id = ?", (job.id,))
            text = "SELECT text_number FROM job WHERE id = ?"
            self._sql(f"DELETE FROM job_text WHERE number = ({text})", (job.id,))
            gone = self._sql("DELETE FROM job WHERE id = ? AND state = ?", (job.id, job.state))
            if gone.rowcount != 1:
                raise Changed(f"job {job.id} is no longer {states.display_text(job.state)}")
            self._sql("DELETE FROM event WHERE job_id = ?", (job.id,))
            self.dependencies.removed(job)
            self.yields.removed(job.id)
            self.outbox.removed(job.id)
            self.of_user.forget()
            self._append(now, job.id, None, "clean", job.state, None, why)

    def remove_events(self, before: float) -> int:
        """Delete the events before the time `before`, but never the newest event. Return the
        number of deleted events.
        """
        with self._transaction():
            newest = "SELECT max(seq) FROM event"
            return self._sql(
                f"DELETE FROM event WHERE time < ? AND seq < ({newest})", (before,)
            ).rowcount

    def job(self, job_id: int) -> JobRow:
        """Return the job with this number. Raises KeyError."""
        row = self._sql(f"{JOBS} WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise KeyError(job_id)
        return job_row(row)

    def state(self, job_id: int) -> str | None:
        """Return the state of the job, without reading its job file; None if no such job exists."""
        return self._text_of(job_id, "state")

    def output_dir(self, job_id: int) -> str | None:
        """Return the output directory of the job, without reading its job file; None if there
        is no such job.
        """
        return self._text_of(job_id, "output_dir")

    def _text_of(self, job_id: int, column: str) -> str | None:
        row = self._sql(f"SELECT {column} FROM job WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else str(row[column])

    def jobs(
        self,
        wanted: Iterable[str] | None = None,
        *,
        limit: int = -1,
        after: int | None = None,
        name: str | None = None,
        array: int | None = None,
        uid: int | None = None,
        by_priority: bool = False,
        seconds: float = math.inf,
    ) -> list[JobRow]:
        """Return jobs, sorted by number, the highest number first. With `by_priority`, the highest
        priority is first, and of equal priorities the lowest number.

        `wanted` are the states (default: all states), and `limit` is the largest number of jobs.
        With `after`, return only jobs that follow the job with this number. `name`, `uid` and
        `array` select the jobs with this name, of this user, and of this array. After `seconds` no
        more jobs are read, but at least one job is read if any matches.
        """
        wanted = tuple(states.STATES if wanted is None else wanted)
        where = f"state IN ({', '.join('?' * len(wanted))})"
        values: list[str | int] = [*wanted]
        if after is not None:
            following = (
                "(-priority, id) > (SELECT -priority, id FROM job WHERE id = ?)"
                if by_priority
                else "id < ?"
            )
            where, values = f"{where} AND {following}", [*values, after]
        for column, value in (("name", name), ("uid", uid), ("array_id", array)):
            if value is not None:
                where, values = f"{where} AND {column} = ?", [*values, value]
        # The texts of jobs are read once it is known which jobs are listed.
        order = "priority DESC, id" if by_priority else "id DESC"
        found = f"SELECT id FROM job WHERE {where} ORDER BY {order} LIMIT ?"
        rows = self._sql(f"{JOBS} WHERE id IN ({found}) ORDER BY {order}", (*values, limit))
        jobs, until = list[JobRow](), time.monotonic() + seconds
        for row in rows:
            jobs.append(job_row(row))
            if time.monotonic() > until:
                break
        rows.close()
        return jobs

    def jobs_with_open_attempts(self, state: str) -> list[JobRow]:
        """Return the jobs in the state `state` that have an attempt without a recorded end."""
        rows = self._sql(
            f"{JOBS} WHERE state = ? AND EXISTS"
            " (SELECT 1 FROM attempt WHERE job_id = job.id AND attempt.state != ?)",
            (state, ENDED),
        )
        return [job_row(row) for row in rows]

    def ids(self, state: str, *, above: int = 0) -> list[int]:
        """Return the numbers above `above` of the jobs in the state `state`, ascending."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        cursor.execute("SELECT id FROM job WHERE state = ? AND id > ? ORDER BY id", (state, above))
        return [row[0] for row in cursor]

    def array_states(self, array_id: int) -> list[tuple[int, str]]:
        """Return the number and the state of each job of the array, sorted by number."""
        rows = self._sql("SELECT id, state FROM job WHERE array_id = ? ORDER BY id", (array_id,))
        return [(row["id"], row["state"]) for row in rows]

    def changed_since(self, seq: int) -> list[int] | None:
        """Return the numbers of the jobs that have an event after event number `seq`, including
        jobs that were removed.

        Return None if some of these events may have been deleted.
        """
        oldest = self._sql("SELECT min(seq) AS seq FROM event").fetchone()["seq"]
        if oldest is not None and oldest > seq + 1:
            return None
        rows = self._sql(
            "SELECT DISTINCT job_id FROM event WHERE seq > ? AND job_id IS NOT NULL", (seq,)
        )
        return [row["job_id"] for row in rows]

    def places(self) -> list[tuple[int, str]]:
        """Return the number and the `output_dir` of each unfinished job."""
        over = ", ".join(f"'{state}'" for state in sorted(states.TERMINAL))
        rows = self._sql(f"SELECT id, output_dir FROM job WHERE state NOT IN ({over})")
        return [(row["id"], row["output_dir"]) for row in rows]

    def specs_with(self, word: str) -> list[tuple[int, str]]:
        """Return the number and the text of the job file of each unfinished job with `word` in
        its job file.
        """
        over = ", ".join(f"'{state}'" for state in sorted(states.TERMINAL))
        rows = self._sql(
            f"SELECT id, coalesce(full_text, spec) AS spec FROM job LEFT JOIN job_text"
            f" ON number = text_number WHERE state NOT IN ({over})"
            " AND instr(coalesce(full_text, spec), ?)",
            (word,),
        )
        return [(row["id"], row["spec"]) for row in rows]

    def after(self, job: JobRow, word: str) -> list[JobRow]:
        """Return the jobs of the same user that depend on `job` and have the text `word` in their
        job files, the oldest first.
        """
        rows = self._sql(
            # With a join, SQLite would read all jobs in the order of their numbers.
            f"{JOBS} WHERE job.id IN (SELECT job_id FROM dependency WHERE on_id = ?) AND uid = ?"
            " AND instr(coalesce(set_text, spec_given, full_text, spec), ?) ORDER BY job.id",
            (job.id, job.uid, word),
        )
        return [job_row(row) for row in rows]

    def open_tokens(self, job_id: int) -> dict[str, str]:
        """Return the attempts of the job without a recorded end: token -> run directory."""
        rows = self._sql(
            "SELECT token, run_dir FROM attempt WHERE job_id = ? AND state != ?", (job_id, ENDED)
        )
        return {row["token"]: row["run_dir"] for row in rows}

    def jobs_with_ended_attempts(self, below: int, limit: int) -> list[int]:
        """Return the numbers of the newest jobs that have an ended attempt, descending: at most
        `limit` numbers, all lower than `below`.
        """
        rows = self._sql(
            "SELECT DISTINCT job_id FROM attempt WHERE job_id < ? AND state = ?"
            " ORDER BY job_id DESC LIMIT ?",
            (below, ENDED, limit),
        )
        return [row["job_id"] for row in rows]

    def attempts(self, job_id: int) -> list[AttemptRow]:
        """Return all attempts of the job, the oldest first."""
        rows = self._sql("SELECT * FROM attempt WHERE job_id = ? ORDER BY number", (job_id,))
        return [attempt_row(row) for row in rows]

    def leases(self) -> list[Lease]:
        """Return all leases of GPUs."""
        return [Lease(**row) for row in self._sql("SELECT * FROM lease ORDER BY gpu_uuid, job_id")]

    def events_of(self, job_id: int, limit: int) -> list[Event]:
        """Return the newest events of the job, at most `limit`, in the order of time."""
        newest = "SELECT * FROM event WHERE job_id = ? ORDER BY seq DESC LIMIT ?"
        return [Event(**row) for row in self._sql(newest, (job_id, limit))][::-1]

    def state_since(self, job: JobRow) -> float | None:
        """Return the time at which the job got its current state; None if the event of this change
        is no longer stored.
        """
        last = (
            "SELECT time FROM event WHERE job_id = ? AND to_state = ?"
            " AND from_state IS NOT to_state ORDER BY seq DESC LIMIT 1"
        )
        row = self._sql(last, (job.id, job.state)).fetchone()
        return None if row is None else float(row["time"])

    def fences(self) -> list[Fence]:
        """Return all fences of GPUs, including expired fences."""
        return [Fence(**row) for row in self._sql("SELECT * FROM fence ORDER BY gpu_uuid")]

    def events(self, since: int, limit: int = 1000) -> list[Event]:
        """Return at most `limit` events after event number `since`, sorted by number."""
        rows = self._sql(
            "SELECT event.*, job.uid FROM event LEFT JOIN job ON job.id = event.job_id"
            " WHERE seq > ? ORDER BY seq LIMIT ?",
            (since, limit),
        )
        return [Event(**row) for row in rows]


RunSql = Callable[..., sqlite3.Cursor]


class DrainTable:
    """Reads and changes the table `drain`, in the transaction of the caller. The table has one
    row while no job may start.
    """

    def __init__(self, run: RunSql) -> None:
        self._sql = run

    def get(self) -> Drain | None:
        """Return the current drain; None if jobs may start."""
        row = self._sql("SELECT since, uid, why FROM drain").fetchone()
        return None if row is None else Drain(**row)

    def put(self, drain: Drain | None) -> None:
        """Set the drain, so that no job starts. With None, remove the drain."""
        self._sql("DELETE FROM drain")
        if drain is not None:
            values = (drain.since, drain.uid, shortened_reason(drain.why))
            self._sql("INSERT INTO drain (one, since, uid, why) VALUES (1, ?, ?, ?)", values)
