"""Books the GPU-seconds of each user by the hour, and counts each user's jobs.

The time of a running attempt is booked every minute and at its end. Each booking begins where the
last one ended, so a restart of the daemon loses nothing. Normally the end of an attempt is the time
when the daemon noticed it. The end in the attempt's own record is used only if the last booking is
so old that no daemon can have been running at the end. An attempt that shares a GPU is booked for
the part that it declared. A booking is committed in the same transaction as the change that causes
it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zerotools.jobs import states
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.rows import ENDED, RUNNING

RunSql = Callable[..., sqlite3.Cursor]
UNSEEN_SECONDS = 180.0
"""If more than this many seconds lie between two bookings, no daemon was running in the
meantime.
"""
_LONGEST_GAP = 366 * 86400.0
"""Largest number of seconds that one booking can add, even if the clock was changed."""


class GpuTime(NamedTuple):
    """The GPU time of an attempt in seconds, and its end in seconds since the epoch."""

    ended: float
    seconds: float


class UsageAccounting:
    """Reads the booked GPU time. `bookings` is a counter that increases whenever new time may have
    been booked.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.bookings = 0

    def rows(self, first: int, until: int = 2**62) -> list[tuple[int, int, float]]:
        """Return the booked time of the hours from `first` to `until`, without the hour `until`:
        (uid, hour since the epoch, GPU-seconds).
        """
        cursor = self._connection.cursor()
        cursor.row_factory = None
        what = "SELECT uid, hour, gpu_seconds FROM gpu_use WHERE hour >= ? AND hour < ?"
        return list(cursor.execute(what, (first, until)))

    def in_all(self) -> dict[int, float]:
        """Return the GPU-seconds ever booked for each user: uid to GPU-seconds."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return dict(cursor.execute("SELECT uid, sum(gpu_seconds) FROM gpu_use GROUP BY uid"))


def book_running(sql: RunSql, now: Moment) -> bool:
    """Book the GPU time of all running attempts up to now. Return whether any is running."""
    rows = sql(f"{_ATTEMPTS} WHERE attempt.state = ? AND gpu_uuids != '[]'", (RUNNING,)).fetchall()
    booked = [_book(sql, row, now, None) for row in rows]
    return any(booked)


def book_end(sql: RunSql, job_id: int, number: int, now: Moment, ended: float) -> None:
    """Book the GPU time of an attempt from its last booking to its end at `ended`. Call this before
    the end of the attempt is recorded.
    """
    row = sql(f"{_ATTEMPTS} WHERE job_id = ? AND number = ?", (job_id, number)).fetchone()
    if row is not None and row["state"] != ENDED:
        _book(sql, row, now, ended)


def book_found(sql: RunSql, job_id: int, number: int, used: GpuTime | None) -> None:
    """Book the GPU time `used` of an ended attempt that was missing in the queue, because the queue
    was older than the attempt.

    The attempt is not booked again later, even if its duration is unknown.
    """
    row = sql(f"{_ATTEMPTS} WHERE job_id = ? AND number = ?", (job_id, number)).fetchone()
    if row is None:
        return
    try:
        gpus = len(json.loads(row["gpu_uuids"]))
    except (ValueError, TypeError):
        return
    if used is not None and gpus:
        left = used.seconds if row["booked"] is None else max(0.0, used.ended - row["booked"])
        seconds = min(used.seconds, left, _LONGEST_GAP)
        _add_hours(sql, row["uid"], used.ended, seconds, gpus * row["gpu_part"])
    sql("UPDATE attempt SET gpu_part = 0 WHERE job_id = ? AND number = ?", (job_id, number))


def _add_hours(sql: RunSql, uid: int, end: float, seconds: float, gpus: float) -> None:
    for hour, part in by_hour(end, seconds).items():
        sql(
            "INSERT INTO gpu_use (uid, hour, gpu_seconds) VALUES (?, ?, ?) ON CONFLICT (uid, hour)"
            " DO UPDATE SET gpu_seconds = gpu_seconds + excluded.gpu_seconds",
            (uid, hour, part * gpus),
        )


_ATTEMPTS = "SELECT attempt.*, job.uid AS uid FROM attempt JOIN job ON job.id = attempt.job_id"


def _book(sql: RunSql, row: Mapping[str, Any], now: Moment, ended: float | None) -> bool:
    try:
        return _book_readable(sql, row, now, ended)
    except (ValueError, TypeError):
        # A damaged row must neither prevent the end of its job nor the booking of other jobs.
        return False


def _book_readable(sql: RunSql, row: Mapping[str, Any], now: Moment, ended: float | None) -> bool:
    gpus = len(json.loads(row["gpu_uuids"]))
    if not gpus or row["started"] is None:
        return False
    is_first = row["booked"] is None
    since = Moment(
        row["started"] if is_first else row["booked"],
        row["started_clock"] if is_first else row["booked_clock"],
        row["boot_id"],
    )
    seconds = min(now.seconds_since(since), _LONGEST_GAP)
    end = now.time
    if ended is not None and ended < now.time and seconds > UNSEEN_SECONDS:
        seconds, end = min(seconds, max(0.0, ended - since.time)), ended
    _add_hours(sql, row["uid"], end, seconds, gpus * row["gpu_part"])
    sql(
        "UPDATE attempt SET booked = ?, booked_clock = ? WHERE job_id = ? AND number = ?",
        (now.time, now.clock, row["job_id"], row["number"]),
    )
    return True


def by_hour(end: float, seconds: float) -> dict[int, float]:
    """Divide the `seconds` before the time `end` among the hours in which they lie. Return {hour
    since the epoch: seconds}.
    """
    found: dict[int, float] = {}
    begin = end - seconds
    while begin < end:
        hour = int(begin // 3600)
        until = min(end, (hour + 1) * 3600.0)
        found[hour] = until - begin
        begin = until
    return found


_WAITING = [
    state for state in states.STATES if state not in states.TERMINAL and state not in states.ACTIVE
]
_BYTES = " + ".join(
    f"coalesce(length(CAST({text} AS BLOB)), 0)"
    for text in ("spec", "spec_given", "full_text", "set_text")
)


class UserCounts:
    """Looks up the users of jobs, and counts the jobs of a user."""

    def __init__(self, sql: RunSql) -> None:
        self._sql = sql
        self._known: dict[int, tuple[int, int]] = {}
        """For each uid: the newest job that was counted, and the total size in bytes of the job
        files up to that job.
        """

    def owner(self, job_id: int) -> int:
        """Return the uid of the user who submitted the job. Raises KeyError."""
        row = self._sql("SELECT uid FROM job WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise KeyError(job_id)
        return int(row["uid"])

    def waiting(self, uid: int) -> int:
        """Return the number of jobs of the user `uid` that wait or are held."""
        marks = ", ".join("?" * len(_WAITING))
        row = self._sql(
            f"SELECT count(*) AS number FROM job WHERE state IN ({marks}) AND uid = ?",
            (*_WAITING, uid),
        ).fetchone()
        return int(row["number"])

    def text_bytes(self, uid: int) -> int:
        """Return how many bytes the job files of the user `uid` have in total.

        Only jobs that were added since the last call are read.
        """
        newest, size = self._known.get(uid, (0, 0))
        # "+": search by the number of the job; the index of uids would read all jobs of the user.
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
        """Return the number and the `output_dir` of jobs of the user `uid` that have lower numbers
        than `job_id`: at most `most` jobs, the newest first.
        """
        rows = self._sql(
            "SELECT id, output_dir FROM job WHERE +uid = ? AND id < ? ORDER BY id DESC LIMIT ?",
            (uid, job_id, most),
        )
        return [(row["id"], row["output_dir"]) for row in rows]

    def forget(self) -> None:
        """Clear the cached counts, because jobs may have been removed."""
        self._known.clear()
