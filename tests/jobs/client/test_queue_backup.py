"""Copies of a queue that is in use, and what is refused."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.small_disks import mounted
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.client.queue_backup import (
    DATABASE,
    LOCK,
    RESTORED,
    back_up_queue,
    remove_leftovers,
    restore_queue,
    unfinished_copy,
)

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from zerotools.jobs.client.queue_backup import unfinished_copy
with unfinished_copy(Path(sys.argv[1])) as staged:
    staged.write_bytes(b"half")
    staged.with_name(staged.name + "-journal").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A queue whose two jobs are in its log alone."""
    state = tmp_path / "state"
    state.mkdir()
    return state


def fill(state: Path) -> sqlite3.Connection:
    database = sqlite3.connect(state / DATABASE, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE job (id INTEGER PRIMARY KEY AUTOINCREMENT, state TEXT)")
    database.execute("CREATE TABLE event (seq INTEGER PRIMARY KEY)")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("INSERT INTO job VALUES (1, 'succeeded'), (2, 'queued')")
    database.execute("INSERT INTO event VALUES (7)")
    return database


def test_a_copy_has_what_is_in_the_log_alone_and_a_plain_one_has_not(
    state: Path, tmp_path: Path
) -> None:
    with closing(fill(state)) as database:
        copy = back_up_queue(state, tmp_path / "copy.db")
        (tmp_path / "plain.db").write_bytes((state / DATABASE).read_bytes())
        database.execute("INSERT INTO job VALUES (3, 'queued')")  # it goes on
    assert (copy.jobs, copy.unfinished, copy.last_change) == (2, 1, 7)
    assert copy.size_bytes == (tmp_path / "copy.db").stat().st_size
    for name, jobs in (("copy.db", 2), ("plain.db", 0)):
        with closing(sqlite3.connect(tmp_path / name)) as found:
            assert found.execute("SELECT count(*) FROM job").fetchone() == (jobs,)
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"copy.db", "plain.db", "state"}
    assert not list(tmp_path.glob(".*"))


def test_a_restored_copy_takes_the_place_and_the_log_goes_with_its_queue(
    state: Path, tmp_path: Path
) -> None:
    with closing(fill(state)):
        back_up_queue(state, tmp_path / "copy.db")
        log = (state / f"{DATABASE}-wal").read_bytes()
        assert log
        (state / "kept-wal").write_bytes(log)
    (state / f"{DATABASE}-wal").write_bytes(log)  # as after a kill
    copy, kept = restore_queue(tmp_path / "copy.db", state)
    assert copy.jobs == 2
    assert {Path(path).name[-4:] for path in kept} >= {"-wal"}
    assert Path(kept[0]).read_bytes() == log
    assert not (state / f"{DATABASE}-wal").exists()
    told = json.loads((state / RESTORED).read_text())
    copied = {"backup": str(tmp_path / "copy.db"), "release": False}
    assert told == {**copied, "highest_id": 2}
    with closing(sqlite3.connect(state / DATABASE)) as found:
        assert found.execute("SELECT count(*) FROM job").fetchone() == (2,)
    assert (tmp_path / "copy.db").exists()


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\0" + bytes(200)])
def test_what_is_no_queue_changes_nothing(state: Path, tmp_path: Path, damage: bytes) -> None:
    fill(state).close()
    before = (state / DATABASE).read_bytes()
    (tmp_path / "bad.db").write_bytes(damage)
    with pytest.raises(BadFile, match=r"bad\.db is not a queue that can be copied"):
        restore_queue(tmp_path / "bad.db", state)
    assert (state / DATABASE).read_bytes() == before
    assert {path.name for path in state.iterdir()} == {DATABASE, LOCK}


def test_a_running_daemon_is_not_given_another_queue(state: Path, tmp_path: Path) -> None:
    fill(state).close()
    back_up_queue(state, tmp_path / "copy.db")
    with (state / LOCK).open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadRequest, match=r"a zerotoolsd, pid 4711, uses .*; stop it first"):
            restore_queue(tmp_path / "copy.db", state)


def test_what_cannot_be_copied_is_said(state: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"zerotools\.db does not exist; name the daemon's"):
        back_up_queue(state, tmp_path / "copy.db")
    fill(state).close()
    (tmp_path / "there").touch()
    with pytest.raises(BadRequest, match="there exists; name a file that does not exist"):
        back_up_queue(state, tmp_path / "there")
    with pytest.raises(BadRequest, match="cannot be written: No such file or directory"):
        back_up_queue(state, tmp_path / "no" / "copy.db")
    with pytest.raises(BadRequest, match="absent does not exist"):
        restore_queue(tmp_path / "absent", state)


def test_what_a_killed_process_left_goes_whatever_its_number_is(tmp_path: Path) -> None:
    killed = Started([sys.executable, "-c", KILLED, str(tmp_path / "copy.db")], cwd=ROOT)
    assert killed.wait(60) == -signal.SIGKILL
    (left,) = tmp_path.glob("*.copying")
    assert left.stat().st_mode & 0o077 == 0
    # Its number belongs to a process that lives: the lock says that nobody writes there.
    mine = left.with_name(f".copy.db.{os.getpid()}.copying")
    left.rename(mine)
    left.with_name(f"{left.name}-journal").rename(mine.with_name(f"{mine.name}-journal"))
    with unfinished_copy(tmp_path / "other.db") as staged:
        assert [path.name for path in tmp_path.glob("*.copying")] == [staged.name]
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_to_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    for name in (".note.7.new", "copy.db.7.copying", ".copying", ".copy.db.x.copying"):
        (tmp_path / name).touch()
    (tmp_path / ".link.7.copying").symlink_to(tmp_path / ".note.7.new")
    (tmp_path / ".directory.7.copying").mkdir()
    before = sorted(tmp_path.iterdir())
    with unfinished_copy(tmp_path / "copy.db") as staged:
        assert remove_leftovers(tmp_path) == []
        assert staged.exists()
        with pytest.raises(FileExistsError), unfinished_copy(tmp_path / "copy.db"):
            pass
        assert staged.exists()
    assert sorted(tmp_path.iterdir()) == before


def test_what_became_the_file_stays(tmp_path: Path) -> None:
    with unfinished_copy(tmp_path / "copy.db") as staged:
        staged.write_bytes(b"whole")
        staged.rename(tmp_path / "copy.db")
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]


def test_a_copy_on_a_full_disk_names_the_copy(state: Path, tmp_path: Path) -> None:
    with closing(fill(state)) as database:
        database.execute("CREATE TABLE big AS SELECT zeroblob(600000) AS data")
        with mounted(tmp_path / "disk", kib=256) as disk:
            if disk is None:
                pytest.skip("this process may not mount a disk")
            with pytest.raises(BadRequest, match=r"copy\.db cannot be written: the disk is full"):
                back_up_queue(state, disk.path / "copy.db")
            assert not list(disk.path.iterdir())
