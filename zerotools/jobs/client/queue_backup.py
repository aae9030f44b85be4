"""Copy the daemon's queue while it is in use, and restore a copy while no daemon runs.

The queue is an SQLite database with a write-ahead log. The newest changes are in `zerotools.db-wal`
until SQLite moves them into `zerotools.db`, so a plain `cp` of one file gives an older or empty
queue. SQLite's online backup gives the complete queue at one moment, even while the daemon writes.
Each copy is written under a temporary name and then renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.exclusive_directory import lock_file
from zerotools.io.files.open_files import sync_directory, sync_file
from zerotools.jobs.states import TERMINAL

DATABASE = "zerotools.db"
LAST_CHANGE = "zerotools.db.last-change"
"""The name of the file with the number of the queue's last change.

If a queue has a lower number than this file, the queue is an older copy.
"""
LOCK = "daemon.lock"
RESTORED = "restored.json"
"""The name of the file that tells the next daemon that the queue was restored.

The file also says whether unfinished jobs may run.
"""
BUSY_SECONDS = 10.0


_NAME = re.compile(r"\..+\.[0-9]+\.copying")
_OF_SQLITE = ("-journal", "-wal", "-shm")


@dataclass(frozen=True)
class QueueCopy:
    """Facts about a copy of the queue.

    `last_change` is the number of the newest event in the copy.
    """

    path: str
    jobs: int
    unfinished: int
    last_change: int
    size_bytes: int


def back_up_queue(state_dir: Path, out: Path) -> QueueCopy:
    """Copy the queue in `state_dir` to the new file `out`.

    If the copy fails, `out` does not exist.

    Raises:
        BadRequest: the queue does not exist, or `out` exists or cannot be written.
        BadFile: the queue is damaged.
    """
    database = state_dir / DATABASE
    if not database.is_file():
        raise BadRequest(f"{database} does not exist; name the daemon's --state-dir")
    if os.path.lexists(out):
        raise BadRequest(f"{out} exists; name a file that does not exist")
    try:
        return _copy(database, out)
    except OSError as error:
        raise BadRequest(f"{out} cannot be written: {error.strerror}") from None


def restore_queue(
    backup: Path, state_dir: Path, *, release: bool = False
) -> tuple[QueueCopy, list[str]]:
    """Replace the queue in `state_dir` by the copy `backup`.

    The old queue is kept under another name.

    Return facts about the copy, and the new paths of the old queue's files. The next daemon that
    starts compares the restored queue with the run directories, and holds unfinished jobs unless
    `release` is true.

    Raises:
        BadRequest: a daemon uses `state_dir`, or `backup` does not exist.
        BadFile: `backup` is not a queue.
    """
    if not backup.is_file():
        what = "is not a file" if backup.exists() else "does not exist"
        raise BadRequest(f"{backup} {what}; name a copy that zerotools backup has made")
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(state_dir):
            return _restore(backup, state_dir, release=release)
    except OSError as error:
        raise BadRequest(f"{error.filename or state_dir}: {error.strerror}") from None


def _restore(backup: Path, state_dir: Path, *, release: bool) -> tuple[QueueCopy, list[str]]:
    database, staged = state_dir / DATABASE, state_dir / f"{DATABASE}.restored"
    staged.unlink(missing_ok=True)
    copy = _copy(backup, staged)
    told = {"backup": str(backup), "release": release, "highest_id": highest_job(database)}
    _write(state_dir / RESTORED, json.dumps(told))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept = []
    # The write-ahead log of the old database would damage the new one.
    for ending in ("-wal", "-shm", ".last-change", ""):
        old = state_dir / f"{DATABASE}{ending}"
        if old.exists():
            # SQLite finds the log by the name of its database.
            aside = state_dir / f"{DATABASE}.before-{stamp}{ending}"
            old.rename(aside)
            kept += [str(aside)]
    staged.rename(database)
    sync_directory(state_dir)
    return copy, kept


def _copy(source: Path, out: Path) -> QueueCopy:
    with unfinished_copy(out) as staged:
        try:
            with (
                closing(sqlite3.connect(source, timeout=BUSY_SECONDS)) as old,
                closing(sqlite3.connect(staged)) as new,
            ):
                old.execute("PRAGMA query_only = ON")
                old.backup(new)
                problem = new.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise sqlite3.DatabaseError(problem)
                new.execute("PRAGMA journal_mode = DELETE")
                copy = _count_rows(new, out)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise BadRequest(f"{out} cannot be written: the disk is full") from None
            raise BadFile(f"{source} is not a queue that can be copied: {error}") from None
        sync_file(staged)
        staged.rename(out)
        sync_directory(out.parent)
    return QueueCopy(**{**vars(copy), "size_bytes": out.stat().st_size})


def _count_rows(database: sqlite3.Connection, path: Path) -> QueueCopy:
    marks = ", ".join("?" * len(TERMINAL))
    over = f"SELECT count(*) FROM job WHERE state NOT IN ({marks})"
    last = "SELECT coalesce(max(seq), 0) FROM event"
    return QueueCopy(
        str(path),
        database.execute("SELECT count(*) FROM job").fetchone()[0],
        database.execute(over, sorted(TERMINAL)).fetchone()[0],
        database.execute(last).fetchone()[0],
        0,
    )


def highest_job(database: Path) -> int:
    """Return the highest job number that was ever used in this queue; 0 if the queue cannot be
    read.
    """
    if not database.is_file():
        return 0
    beside = [database.with_name(f"{database.name}{ending}") for ending in ("-wal", "-shm")]
    made = [path for path in beside if not path.exists()]
    try:
        # Read-only: closing the last connection moves the log into the queue, and this log is kept.
        address = f"{database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as queue:
            highest = queue.execute("SELECT coalesce(max(id), 0) FROM job").fetchone()[0]
            given = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'job'"
            return max(int(highest), int(queue.execute(given).fetchone()[0]))
    except (sqlite3.Error, ValueError):  # a damaged queue is often the reason to restore
        return 0
    finally:
        for path in made:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    fd = os.open(state_dir / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # The daemon locks both, because the lock file may be removed while it runs.
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for lock in (directory, fd):
            lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, state_dir)
        yield
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise BadRequest(
            f"a zerotoolsd, pid {pid}, uses {state_dir}; stop it first (its jobs continue), "
            "and start it again afterwards"
        ) from None
    finally:
        os.close(fd)
        os.close(directory)


def _write(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.new")
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)
    sync_directory(path.parent)


@contextmanager
def unfinished_copy(out: Path) -> Iterator[Path]:
    """Yield the path of a new temporary file next to `out`. Only its owner can read the file.

    At the end of the `with` block, the file is removed unless the caller has renamed it. Raises
    OSError.
    """
    remove_leftovers(out.parent)
    staged = out.with_name(f".{out.name}.{os.getpid()}.copying")
    descriptor = _made_and_locked(staged)
    try:
        yield staged
    finally:
        _remove(staged)
        os.close(descriptor)


def _made_and_locked(staged: Path) -> int:
    while True:
        descriptor = os.open(staged, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # without locks, abandoned copies stay
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process removed the file before the lock


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove temporary files that killed processes have left in `directory`, and return their
    paths. Raises OSError.
    """
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return [path for path in sorted(found) if _remove_unlocked(path)]


def _remove_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # removed, another user's, or a symbolic link
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    except OSError:  # another process writes it, or removal is not allowed
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(staged: Path) -> None:
    for ending in ("", *_OF_SQLITE):
        staged.with_name(staged.name + ending).unlink(missing_ok=True)
