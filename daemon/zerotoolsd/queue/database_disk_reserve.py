"""Disk space that the queue reserves, so that jobs can be ended on a full disk.

On a full disk, submits are refused. But a cancel, a stop at a time limit and the end of an attempt
also change the queue, and these changes are necessary to free the disk. So disk blocks behind the
database and behind its write-ahead log are reserved in advance. A commit writes into the log. A
checkpoint of SQLite copies the log into the database; then the log is written from its start again.

The database file is opened once and stays open as long as SQLite has it open, because closing any
descriptor of a file releases all locks of the process on this file. Without SQLite's lock, another
process that has read the queue (a backup) would assume that nobody else uses the queue, and would
remove the log when it ends. The daemon would continue to write into the removed log, and all its
later commits would be lost.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.client.queue_backup import DATABASE

LOG_BYTES = 256 << 10
DATABASE_BYTES = 128 << 10
LEAST_BYTES = 16 << 10
NO_ROOM_BYTES, NO_ROOM_PART = 4 << 20, 1 / 16
"""Jobs are refused if less than this many bytes are free for all users, or less than this
fraction of a small disk.

The space is kept for records that must be written.
"""
_KEEP_SIZE = 1
"""The flag FALLOC_FL_KEEP_SIZE of fallocate(2): blocks are reserved, but the size of the file
does not change.
"""
_libc = ctypes.CDLL(None, use_errno=True)


def reserve_disk_space(state_dir: Path, database: int) -> bool:
    """Reserve disk space for the growth of the database in `state_dir`. Return whether all of
    this space was available.

    `database` is a file descriptor of the database file. Call this after each checkpoint of
    SQLite, which frees the blocks beyond the end of the database. A repeated call costs
    little.
    """
    try:
        log = os.open(state_dir / f"{DATABASE}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        in_log = os.fstat(log).st_size
        # The whole log may be new to the database.
        return _allocate(database, in_log + DATABASE_BYTES) and _allocate(log, LOG_BYTES)
    except OSError:
        return False
    finally:
        os.close(log)  # SQLite locks another file for it


def _allocate(fd: int, wanted: int) -> bool:
    """Reserve `wanted` bytes beyond the end of the file `fd`, or fewer if the disk has less. Return
    whether `wanted` bytes were available.
    """
    size, more = os.fstat(fd).st_size, wanted
    while more >= LEAST_BYTES:
        if not _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(size), ctypes.c_long(more)):
            break
        more //= 2
    return more == wanted


def why_full(state_dir: Path) -> str | None:
    """Return the reason why no job can be queued, if the disk is almost full; None if it has
    enough free space.
    """
    try:
        found = os.statvfs(state_dir)
    except OSError as error:
        return f"{state_dir}: {error.strerror}"
    free, all_of_it = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < min(NO_ROOM_BYTES, all_of_it * NO_ROOM_PART):
        return f"{state_dir} has {free / 2**20:.1f} MiB free: {os.strerror(errno.ENOSPC)}"
    return None


def why_low_space(state_dir: Path, least_bytes: int) -> str | None:
    """Return a sentence for administrators if the disk has less than `least_bytes` bytes free;
    None if it has more.
    """
    try:
        found = os.statvfs(state_dir)
    except OSError as error:
        return f"{state_dir}: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    if free >= least_bytes:
        return None
    limit = f"less than {least_bytes / 2**30:.4g} GiB (notify.disk_free)"
    return f"{state_dir} has {free / 2**30:.1f} GiB free, {limit}; zerotools clean frees space"


def is_full(error: BaseException) -> bool:
    """Return whether `error`, an error of SQLite, means that the disk is full."""
    code = getattr(error, "sqlite_errorcode", 0)  # only SQLite's own errors have it
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF == sqlite3.SQLITE_FULL


class DiskReserve:
    """Disk space that is reserved for the queue in `state_dir`. `connection` is an open
    connection to its database.
    """

    def __init__(self, state_dir: Path, connection: sqlite3.Connection) -> None:
        """Open the database file. If this fails, close the connection and raise OSError."""
        self._state_dir = state_dir
        self._connection = connection
        try:
            self._database: int | None = os.open(state_dir / DATABASE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            connection.close()
            raise

    def reserve(self) -> bool:
        """Call `reserve_disk_space` and return its result."""
        return self._database is not None and reserve_disk_space(self._state_dir, self._database)

    def close(self) -> None:
        """Close the connection, then the database file. In the other order, SQLite's locks
        would be released too early.
        """
        self._connection.close()
        if self._database is not None:
            os.close(self._database)
        self._database = None

    def why_full(self) -> str | None:
        """Return the reason why no job can be queued, and what to do. Return None if the disk has
        enough free space, and the database is in its place.
        """
        if (lost := self.why_lost()) is not None:
            return lost
        full = why_full(self._state_dir)
        return None if full is None else f"{full}; free some space there"

    def why_lost(self) -> str | None:
        """Return a sentence if the open database is not the file in the state directory any more.

        Its changes would be lost when the daemon ends.
        """
        path = self._state_dir / DATABASE
        try:
            if self._database is None or os.path.samestat(os.fstat(self._database), path.stat()):
                return None
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"{path}: {error.strerror}"
        return f"{path} was moved or removed; put it back, or start zerotoolsd again"

    def handle_error(self, error: BaseException) -> None:
        """Handle `error`, which a change of the queue has raised. If the disk is full, make SQLite
        write its log from the start again.

        The start of the log lies in blocks that are already reserved, so the next try of the change
        has space.
        """
        if is_full(error):
            with suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            self.reserve()
