"""What must be recorded is recorded on a full disk, and nothing more is queued there."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import pytest

from harness.started import run
from tests.daemon.daemons import make_job
from tests.daemon.small_disks import SmallDisk
from zerotoolsd.queue import database_disk_reserve
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import NewJob

JOBS = 30
"""Their changes take more than the room of the log at once."""


def queue_of(state: Path) -> Store:
    state.mkdir()
    store, spec = Store(state), make_job("")
    new = NewJob(
        uid=0,
        name="x",
        spec=spec,
        output_dir=None,
        default_output=state,
        idempotency_key=None,
        now=1.0,
    )
    assert len(store.submit_all([new] * JOBS)) == JOBS
    return store


def cancel_all(store: Store) -> None:
    async def cancel(job_id: int) -> None:
        after = JobStatus(state="cancelled", reason="cancelled by a test " + "x" * 500)
        with store.change(store.job(job_id), after, "cancel", now=2.0):
            pass

    async def story() -> None:
        for job_id in range(1, JOBS + 1):
            await when_free(lambda job_id=job_id: cancel(job_id))  # type: ignore[misc]

    asyncio.run(story())


def test_a_full_disk_takes_changes_of_jobs_that_are_queued(small_disk: SmallDisk) -> None:
    store = queue_of(small_disk.path / "state")
    assert store.disk_reserve.why_full() is None
    assert store.disk_reserve.reserve()
    small_disk.fill()
    assert "No space left on device" in str(store.disk_reserve.why_full())
    cancel_all(store)
    assert set(store.states().values()) == {"cancelled"}
    store.close()


def test_a_queue_that_was_moved_away_takes_no_jobs(tmp_path: Path) -> None:
    store = queue_of(tmp_path / "state")
    assert store.disk_reserve.why_lost() is None
    (tmp_path / "state").rename(tmp_path / "moved")
    assert "zerotools.db was moved or removed; put it back" in str(store.disk_reserve.why_full())
    Store(tmp_path / "moved").close()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "zerotools.db").touch()
    assert "was moved or removed" in str(store.disk_reserve.why_lost())
    store.close()
    assert store.disk_reserve.why_lost() is None


def test_without_that_room_they_are_refused(small_disk: SmallDisk) -> None:
    store = queue_of(small_disk.path / "state")
    small_disk.fill()
    with pytest.raises(sqlite3.OperationalError, match="is full"):
        cancel_all(store)
    small_disk.free()
    store.close()


def test_room_that_was_taken_is_not_taken_twice(tmp_path: Path) -> None:
    store = queue_of(tmp_path / "state")
    if not store.disk_reserve.reserve():
        pytest.skip("this file system takes no room beforehand")
    log = tmp_path / "state" / "zerotools.db-wal"
    taken = log.stat()
    assert taken.st_blocks * 512 >= taken.st_size + database_disk_reserve.LOG_BYTES
    assert store.disk_reserve.reserve()
    assert log.stat().st_blocks == taken.st_blocks
    store.close()


def test_p1_a_process_that_reads_the_queue_and_goes_does_not_take_the_log_along(
    tmp_path: Path,
) -> None:
    """It does where it is the last one: where nobody else has a lock on the database."""
    store = queue_of(tmp_path / "state")
    store.disk_reserve.reserve()
    log = tmp_path / "state" / "zerotools.db-wal"
    before = log.stat().st_ino
    reads = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('SELECT * FROM job')"
    database = tmp_path / "state" / "zerotools.db"
    run([sys.executable, "-I", "-S", "-c", f"{reads}; d.close()", database], timeout=20, check=True)
    assert log.stat().st_ino == before
    cancel_all(store)
    copied = tmp_path / "copy"
    shutil.copytree(tmp_path / "state", copied)  # as after a kill
    store.close()
    with closing(Store(copied)) as store:
        assert set(store.states().values()) == {"cancelled"}


def test_a_state_directory_that_does_not_answer_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = namedtuple("found", "f_bavail f_frsize f_blocks")
    for free, all_of_it, full in ((3 << 20, 1 << 40, True), (5 << 20, 1 << 40, False)):
        monkeypatch.setattr(os, "statvfs", lambda _: found(free, 1, all_of_it))  # noqa: B023
        assert (database_disk_reserve.why_full(tmp_path) is not None) is full
    monkeypatch.undo()
    assert (
        database_disk_reserve.why_full(tmp_path / "none")
        == f"{tmp_path}/none: No such file or directory"
    )
    assert database_disk_reserve.why_low_space(tmp_path, 1) is None
    said = str(database_disk_reserve.why_low_space(tmp_path, 2**60))
    assert said.startswith(f"{tmp_path} has ")
    assert "less than 1.074e+09 GiB (notify.disk_free); zerotools clean frees space" in said
    gone = tmp_path / "none"
    assert database_disk_reserve.why_low_space(gone, 1) == f"{gone}: No such file or directory"
