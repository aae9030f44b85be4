"""Room on the disk that the queue takes before it needs it: what is full can still be ended.

A full disk refuses submits. A cancel, a stop at a time limit and the end of an attempt are changes
of the queue, too, and without them a full disk could not be made free. So blocks beyond the ends of
the database and of its log are taken while there are some. A commit writes into the log; a
checkpoint moves it into the database, after which the log is written from its start again.

The database's file is opened once and stays open as long as SQLite has it: closing any descriptor
of a file gives up all locks that the process has on it. Without SQLite's lock, the next process
that reads the queue and goes (a backup) takes itself for the last one and removes the log, into
which the daemon goes on writing: all that it commits from then on is gone with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.client.queue_copies import DATABASE

LOG_BYTES = 256 << 10
DATABASE_BYTES = 128 << 10
LEAST_BYTES = 16 << 10
NO_ROOM_BYTES, NO_ROOM_PART = 4 << 20, 1 / 16
"""With less than this left for all, or than this part of a small disk, submits are refused: the
room is for what must be recorded."""
_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2): the file does not seem longer."""
_libc = ctypes.CDLL(None, use_errno=True)


def take_room(state_dir: Path, database: int) -> bool:
    """See to it that the queue can grow; whether all could be had. It costs little the next time.
    `database` is a descriptor of its file.

    After each checkpoint: SQLite gives back what lies beyond the end of the database then.
    """
    try:
        log = os.open(state_dir / f"{DATABASE}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        in_log = os.fstat(log).st_size
        # What is in the log may all be new to the database.
        return _take(database, in_log + DATABASE_BYTES) and _take(log, LOG_BYTES)
    except OSError:
        return False
    finally:
        os.close(log)  # SQLite locks another file for it


def _take(fd: int, wanted: int) -> bool:
    """Blocks for so many bytes beyond the end of the file, or for as many as there are."""
    size, more = os.fstat(fd).st_size, wanted
    while more >= LEAST_BYTES:
        if not _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(size), ctypes.c_long(more)):
            break
        more //= 2
    return more == wanted


def why_full(state_dir: Path) -> str | None:
    """Why nothing more is to be queued here; None: there is room."""
    try:
        found = os.statvfs(state_dir)
    except OSError as error:
        return f"{state_dir}: {error.strerror}"
    free, all_of_it = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < min(NO_ROOM_BYTES, all_of_it * NO_ROOM_PART):
        return f"{state_dir} has {free / 2**20:.1f} MiB free: {os.strerror(errno.ENOSPC)}"
    return None


def is_full(error: BaseException) -> bool:
    """Whether SQLite found no room on the disk."""
    code = getattr(error, "sqlite_errorcode", 0)  # of SQLite's own errors alone
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF == sqlite3.SQLITE_FULL


class QueueRoom:
    """The room of the queue that `connection` has open in `state_dir`."""

    def __init__(self, state_dir: Path, connection: sqlite3.Connection) -> None:
        """Raises OSError: the connection is closed."""
        self._state_dir = state_dir
        self._connection = connection
        try:
            self._database: int | None = os.open(state_dir / DATABASE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            connection.close()
            raise

    def take(self) -> bool:
        """See `take_room`."""
        return self._database is not None and take_room(self._state_dir, self._database)

    def close(self) -> None:
        """Close the connection, and then the file: never the other way round."""
        self._connection.close()
        if self._database is not None:
            os.close(self._database)
        self._database = None

    def why_full(self) -> str | None:
        """Why nothing more is to be queued; None: there is room."""
        return why_full(self._state_dir)

    def heed(self, error: BaseException) -> None:
        """A change failed by `error`. Where the disk is full, the log is written from its start
        again, into blocks that it has: the next try has room."""
        if is_full(error):
            with suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            self.take()
