"""The database file: created whole, migrated forward with a copy first, never opened in doubt."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from zerotools.core.errors import BadFile, Unsupported

DATABASE = "zerotools.db"

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE job (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid INTEGER NOT NULL,
        name TEXT NOT NULL,
        spec TEXT NOT NULL,
        idempotency_key TEXT,
        output_dir TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        restarts_used INTEGER NOT NULL,
        best_step INTEGER NOT NULL,
        eligible_at REAL,
        created REAL NOT NULL,
        started REAL,
        ended REAL,
        UNIQUE (uid, idempotency_key)
    );
    CREATE INDEX job_state ON job (state);
    CREATE TABLE attempt (
        job_id INTEGER NOT NULL REFERENCES job (id),
        number INTEGER NOT NULL,
        token TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL,
        run_dir TEXT NOT NULL,
        gpu_uuids TEXT NOT NULL,
        resumed_from TEXT,
        started REAL,
        ended REAL,
        result TEXT,
        PRIMARY KEY (job_id, number)
    );
    CREATE TABLE lease (
        gpu_uuid TEXT PRIMARY KEY,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        held_by TEXT
    );
    CREATE TABLE event (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,
        job_id INTEGER,
        attempt INTEGER,
        kind TEXT NOT NULL,
        from_state TEXT,
        to_state TEXT,
        why TEXT
    );
    """,
    # Which version accepted a job and what its author set; when an attempt began by a clock that
    # nobody sets.
    """
    ALTER TABLE job ADD COLUMN spec_version TEXT NOT NULL DEFAULT '0.1.0';
    ALTER TABLE job ADD COLUMN spec_given TEXT;
    ALTER TABLE attempt ADD COLUMN started_clock REAL;
    ALTER TABLE attempt ADD COLUMN boot_id TEXT;
    """,
)
"""Migration n (from 1) turns a database of `user_version` n-1 into one of n."""


def open_database(state_dir: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """The database of `state_dir`, at the newest schema; made if there never was one.

    Raises:
        BadFile: it is damaged, or gone while its jobs' directories are there.
        Unsupported: a newer version wrote it. Its files are left alone.
    """
    path = state_dir / DATABASE
    if not path.exists():
        _refuse_lost_database(state_dir, path)
        _create(path, migrations)
    version = _version_in_header(path)
    if version > len(migrations):
        raise Unsupported(
            f"{path} has schema {version} and this zerotoolsd knows {len(migrations)}: a newer "
            "version wrote it; start that one (nothing was changed)"
        )
    try:
        return _open(path, migrations)
    except sqlite3.DatabaseError as error:
        raise BadFile(_unreadable(path, str(error))) from error


def _refuse_lost_database(state_dir: Path, path: Path) -> None:
    jobs = state_dir / "jobs"
    if jobs.is_dir() and any(jobs.iterdir()):
        raise BadFile(_unreadable(path, f"it is missing, and {jobs} holds jobs"))


def _unreadable(path: Path, why: str) -> str:
    return (
        f"{path} cannot be read: {why}. zerotoolsd does not start an empty queue over it: restore "
        f"a copy ({path.name}.schema-*.bak beside it, or your backup), or start with another "
        "--state-dir"
    )


def _version_in_header(path: Path) -> int:
    """`user_version`, read without touching the file's journal: bytes 60 to 63, big-endian."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise BadFile(_unreadable(path, "it is not an SQLite database"))
    return int.from_bytes(header[60:64], "big")


def _create(path: Path, migrations: Sequence[str]) -> None:
    """Build the database under another name and rename it: it is there whole or not at all."""
    staged = path.with_name(f"{path.name}.new")
    staged.unlink(missing_ok=True)
    os.close(os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = _connect(staged)
    for number, script in enumerate(migrations, 1):
        _migrate(connection, number, script)
    connection.close()
    staged.rename(path)
    _sync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _open(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        connection.execute("PRAGMA journal_mode = WAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < len(migrations):
            _copy(connection, path, version)
        for number, script in enumerate(migrations[version:], version + 1):
            _migrate(connection, number, script)
        # The version must be in the file itself, where an older daemon looks for it.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except BaseException:  # undone, and raised again
        connection.close()
        raise
    return connection


def _copy(connection: sqlite3.Connection, path: Path, version: int) -> None:
    copy = path.with_name(f"{path.name}.schema-{version}.bak")
    staged = copy.with_name(f"{copy.name}.new")
    staged.unlink(missing_ok=True)
    os.close(os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection.execute("VACUUM INTO ?", (str(staged),))
    staged.rename(copy)
    _sync_directory(path.parent)


def _migrate(connection: sqlite3.Connection, number: int, script: str) -> None:
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
        )
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
