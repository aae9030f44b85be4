"""Creates, migrates and opens the database file of the queue.

The file is created atomically. A migration can only update the file to a newer schema. Before a
migration, the file is copied. A file that may be damaged or out of date is not opened.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from zerotools.core.errors import BadFile, Unsupported
from zerotools.jobs.client.queue_backup import DATABASE, LAST_CHANGE, RESTORED
from zerotoolsd.supervisor.durable_files import open_regular, sync_directory

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
    # The version that accepted a job, and the keys that its author set; the start of an attempt by
    # a clock that cannot be set.
    """
    ALTER TABLE job ADD COLUMN spec_version TEXT NOT NULL DEFAULT '0.1.0';
    ALTER TABLE job ADD COLUMN spec_given TEXT;
    ALTER TABLE attempt ADD COLUMN started_clock REAL;
    ALTER TABLE attempt ADD COLUMN boot_id TEXT;
    """,
    # The machine on which an attempt runs and a GPU is leased; null: this one, before it was noted.
    """
    ALTER TABLE attempt ADD COLUMN host TEXT;
    ALTER TABLE lease ADD COLUMN host TEXT;
    """,
    # For which cause an attempt ended; the events of one job, which `explain` reads. GPUs that are
    # given to no job until a time, or the next boot, and why.
    """
    ALTER TABLE attempt ADD COLUMN cause TEXT;
    CREATE INDEX event_job ON event (job_id);
    CREATE TABLE fence (
        gpu_uuid TEXT PRIMARY KEY,
        since REAL NOT NULL,
        until REAL NOT NULL,
        boot_id TEXT,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        why TEXT NOT NULL
    );
    """,
    # The order of waiting jobs.
    """
    ALTER TABLE job ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    """,
    # Several attempts on one GPU, each with so many bytes of its memory; null: the whole GPU.
    """
    CREATE TABLE shared_lease (
        gpu_uuid TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        held_by TEXT,
        host TEXT,
        bytes INTEGER,
        PRIMARY KEY (gpu_uuid, job_id, attempt)
    );
    INSERT INTO shared_lease (gpu_uuid, job_id, attempt, held_by, host)
        SELECT gpu_uuid, job_id, attempt, held_by, host FROM lease;
    DROP TABLE lease;
    ALTER TABLE shared_lease RENAME TO lease;
    """,
    # Before when a job does not start (seconds since the epoch), and after which others it does;
    # `ended` is how one of those ended that was removed since.
    """
    ALTER TABLE job ADD COLUMN begin_at REAL;
    CREATE TABLE dependency (
        job_id INTEGER NOT NULL,
        on_id INTEGER NOT NULL,
        condition TEXT NOT NULL,
        ended TEXT,
        PRIMARY KEY (job_id, on_id)
    );
    CREATE INDEX dependency_on ON dependency (on_id);
    """,
    # Why nothing starts; no row: jobs start.
    """
    CREATE TABLE drain (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        since REAL NOT NULL,
        uid INTEGER NOT NULL,
        why TEXT
    );
    """,
    # The users' use of GPUs, by the hour since the epoch; the time until which attempts are booked
    # there, and the part of each of their GPUs.
    """
    CREATE TABLE gpu_use (
        uid INTEGER NOT NULL,
        hour INTEGER NOT NULL,
        gpu_seconds REAL NOT NULL,
        PRIMARY KEY (uid, hour)
    );
    ALTER TABLE attempt ADD COLUMN gpu_part REAL NOT NULL DEFAULT 1;
    ALTER TABLE attempt ADD COLUMN booked REAL;
    ALTER TABLE attempt ADD COLUMN booked_clock REAL;
    """,
    # Jobs that were submitted as an array: the number of the first, the index and the size, and the
    # label of each.
    """
    ALTER TABLE job ADD COLUMN array_id INTEGER;
    ALTER TABLE job ADD COLUMN array_index INTEGER;
    ALTER TABLE job ADD COLUMN array_size INTEGER;
    ALTER TABLE job ADD COLUMN array_label TEXT;
    CREATE INDEX job_array ON job (array_id) WHERE array_id IS NOT NULL;
    """,
    # Notices of jobs that are not delivered yet; counts of those that never were, and why.
    """
    CREATE TABLE outbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        uid INTEGER NOT NULL,
        job_id INTEGER NOT NULL,
        notice TEXT NOT NULL,
        channel TEXT NOT NULL,
        target TEXT NOT NULL,
        body TEXT NOT NULL,
        created REAL NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0,
        next_at REAL NOT NULL,
        trouble TEXT
    );
    CREATE INDEX outbox_uid ON outbox (uid);
    CREATE TABLE outbox_count (what TEXT PRIMARY KEY, number INTEGER NOT NULL);
    """,
    # How many ranks an attempt has: of an elastic job, each may have another number.
    "ALTER TABLE attempt ADD COLUMN world_size INTEGER;",
    # Attempts that were asked to end so that their jobs continue later: the purpose, the job that
    # needs the resources, the time of its first step, and the cost.
    """
    CREATE TABLE yield (
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        purpose TEXT NOT NULL,
        for_job INTEGER,
        asked REAL NOT NULL,
        ended REAL,
        outcome TEXT,
        saved_step INTEGER,
        steps_lost INTEGER,
        first_step REAL,
        PRIMARY KEY (job_id, attempt)
    );
    CREATE INDEX yield_for ON yield (for_job) WHERE for_job IS NOT NULL;
    """,
    # The memory estimate of a job at its submit, as JSON; null: unknown.
    "ALTER TABLE job ADD COLUMN expected TEXT;",
    # Memory of its GPUs that no process held when an attempt began, in bytes by UUID, as JSON.
    "ALTER TABLE attempt ADD COLUMN gpu_baseline TEXT;",
    # Job files of an array, which are written before its jobs are (`queue.array_job_files`); null:
    # `spec` and `spec_given` of the job have its file.
    """
    CREATE TABLE job_text (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        full_text TEXT NOT NULL,
        set_text TEXT NOT NULL
    );
    ALTER TABLE job ADD COLUMN text_number INTEGER;
    CREATE UNIQUE INDEX job_text_number ON job (text_number) WHERE text_number IS NOT NULL;
    """,
    # Conditions of jobs that notices have reported, such as a stall; job 0 is the machine.
    """
    CREATE TABLE reported (job_id INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (job_id, name));
    """,
)
"""SQL scripts of the migrations. Script n (counted from 1) updates a database from `user_version`
n-1 to n.
"""


_OF_MACHINE = frozenset(
    {
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_LOCKED),
    }
)


def open_database(
    state_dir: Path, migrations: Sequence[str] = MIGRATIONS, *, rebuild: bool = False
) -> sqlite3.Connection:
    """Return the open database of `state_dir`, updated to the newest schema.

    If `state_dir` never had a database, a new one is created. With `rebuild`, a lost database is
    also created again.

    Raises:
        BadFile: the database is damaged, or it is lost although the directories of its jobs exist.
        sqlite3.OperationalError: disk space or memory ran out, or the disk failed; the database is
            unchanged.
        Unsupported: a newer version wrote the database. Its files are left unchanged.
    """
    path = state_dir / DATABASE
    if not path.exists():
        if not rebuild:
            _refuse_lost_database(state_dir, path)
        _create(path, migrations)
    version = _version_in_header(path)
    if version > len(migrations):
        raise Unsupported(
            f"{path} has schema {version}, but this zerotoolsd reads only up to "
            f"{len(migrations)}: a newer version wrote it; start that version (the file is "
            "unchanged)"
        )
    try:
        return _open(path, migrations)
    except sqlite3.DatabaseError as error:
        if _is_of_machine(error):
            why = (
                f"{path}: {error}; check the free space (df -h, df -i), and check dmesg for "
                "errors of the disk"
            )
            raise sqlite3.OperationalError(why) from error
        raise BadFile(_unreadable(path, str(error))) from error


def _is_of_machine(error: sqlite3.Error) -> bool:
    """Return whether the machine caused `error`, so that a later try may succeed."""
    code = getattr(error, "sqlite_errorcode", None)
    return (
        code is not None and code & 0xFF in _OF_MACHINE and code != sqlite3.SQLITE_IOERR_SHORT_READ
    )


def _refuse_lost_database(state_dir: Path, path: Path) -> None:
    jobs = state_dir / "jobs"
    if jobs.is_dir() and any(jobs.iterdir()):
        raise BadFile(_unreadable(path, f"it is missing, but {jobs} has directories of jobs"))


def _unreadable(path: Path, why: str) -> str:
    return (
        f"{path} cannot be read: {why}. zerotoolsd does not replace this queue with an empty one: "
        f"restore a copy (zerotools restore FILE: {path.name}.schema-*.bak in the same "
        "directory, or your backup), rebuild the queue from the run directories (zerotoolsd "
        "--rebuild), or start with another --state-dir"
    )


def set_aside(state_dir: Path, stamp: str) -> list[Path]:
    """Rename the files of a queue that cannot be used, so that a new and empty queue can be
    created. Return the new paths.

    `stamp` is a part of the new names.
    """
    moved = []
    for ending in ("-wal", "-shm", ".last-change", ""):
        path = state_dir / f"{DATABASE}{ending}"
        if path.exists():
            moved.append(path.rename(state_dir / f"{DATABASE}.damaged-{stamp}{ending}"))
    return moved


def refuse_older(state_dir: Path, known: int) -> None:
    """Raise BadFile if the queue in `state_dir` has lost its newest changes.

    `known` is the number of the last change in the queue. Changes are lost if `last_change` returns
    a higher number.
    """
    newest = last_change(state_dir)
    if known >= newest or (state_dir / RESTORED).exists():
        return
    raise BadFile(
        f"{state_dir / DATABASE} is out of date: its last change has the number {known}, but "
        "change "
        f"{newest} was committed here. Perhaps zerotools.db-wal is missing, or an older copy "
        "replaced the file. Put the newer files back, or jobs accepted after change "
        f"{known} are lost. Without these files, start zerotoolsd --rebuild: it reads later "
        "attempts from the run directories and holds unfinished jobs"
    )


def _version_in_header(path: Path) -> int:
    """Return the `user_version` of the database file. Only bytes 60 to 63 (big-endian) are read, so
    that the journal stays untouched. Raises BadFile.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise BadFile(_unreadable(path, "it is not an SQLite database"))
    return int.from_bytes(header[60:64], "big")


def _create(path: Path, migrations: Sequence[str]) -> None:
    """Create the database under a temporary name, then rename it to `path`."""
    staged = path.with_name(f"{path.name}.new")
    staged.unlink(missing_ok=True)
    os.close(os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(_connect(staged)) as connection:
        # One transaction: each of them flushes the disk, and nobody sees the file before the end.
        _migrate(connection, len(migrations), "\n".join(migrations))
    staged.rename(path)
    sync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:  # undone, and raised again
        connection.close()
        raise
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
    sync_directory(path.parent)


def _migrate(connection: sqlite3.Connection, number: int, script: str) -> None:
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
        )
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


_LARGEST = 2**53


class LastChange:
    """A small file next to the queue. It contains the number of the last change and the number
    of the newest job.
    """

    def __init__(self, state_dir: Path, number: int, newest_job: int) -> None:
        """Open the file in `state_dir`. Raises OSError if it cannot be created."""
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd: int | None = os.open(state_dir / LAST_CHANGE, flags, 0o600)
        self._newest_job = 0
        self.note(number, newest_job)

    def note(self, number: int, newest_job: int = 0) -> None:
        """Record that the change `number` is committed. `newest_job` is the highest job number."""
        self._newest_job = max(self._newest_job, newest_job)
        if self._fd is not None:
            with suppress(OSError):  # it only helps to find what went wrong
                os.pwrite(self._fd, b"%020d\n%020d\n" % (number, self._newest_job), 0)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def last_change(state_dir: Path) -> int:
    """Return the number of the last change that was ever committed to the queue in this directory;
    0 if unknown.
    """
    return _read(state_dir / LAST_CHANGE)[0]


def highest_numbers(state_dir: Path) -> tuple[int, int]:
    """Return the highest numbers of a change and of a job in all queues that were ever in this
    directory; 0 if unknown.

    Queues that were renamed count, too (`zerotools.db.before-…`, `zerotools.db.damaged-…`).
    """
    ending = LAST_CHANGE.removeprefix(DATABASE)
    found = [(0, 0), *map(_read, state_dir.glob(f"{DATABASE}*{ending}"))]
    return max(change for change, _ in found), max(job for _, job in found)


def _read(path: Path) -> tuple[int, int]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            number, _, job = file.read(64).partition(b"\n")
        return _possible(int(number)), _possible(int(job or b"0"))
    except (OSError, ValueError):
        return 0, 0


def _possible(number: int) -> int:
    return number if 0 <= number < _LARGEST else 0
