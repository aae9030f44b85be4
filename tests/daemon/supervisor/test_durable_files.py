"""A record that is written where nothing else can be written."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.daemon.small_disks import SmallDisk
from zerotoolsd.supervisor.durable_files import (
    ROOM_BYTES,
    ReservedRecord,
    placeholder_of,
    read_json,
    reserve_space,
    write_json,
)


def test_the_record_takes_the_place_of_its_room(tmp_path: Path) -> None:
    record = ReservedRecord(tmp_path / "exit.json", 8)
    room = placeholder_of(tmp_path / "exit.json").stat()
    assert room.st_blocks * 512 >= ROOM_BYTES
    assert not (tmp_path / "exit.json").exists()
    assert record.write({"cause": "done"})
    assert (tmp_path / "exit.json").stat().st_ino == room.st_ino
    assert read_json(tmp_path / "exit.json") == {"cause": "done"}
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_it_is_written_on_a_disk_without_blocks_inodes_and_descriptors(
    small_disk: SmallDisk,
) -> None:
    record = ReservedRecord(small_disk.path / "exit.json", 2)
    small_disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (small_disk.path / "other").mkdir()
    with no_descriptors():
        assert record.write({"cause": "done", "last_lines": "x" * 4096})
    assert (read_json(small_disk.path / "exit.json") or {})["cause"] == "done"


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_never_gives_up_and_waits_longer_each_time(tmp_path: Path) -> None:
    record = ReservedRecord(tmp_path / "exit.json", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1000:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert record.write({"cause": "done"}, sleep)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert waits[:3] == [0.2, 0.4, 0.8]
    assert set(waits[10:]) == {10.0}
    assert read_json(tmp_path / "exit.json") == {"cause": "done"}


def test_what_is_only_nice_to_know_does_not_cost_the_record(tmp_path: Path) -> None:
    record = ReservedRecord(tmp_path / "exit.json", 0)
    told = {"outcome": "crashed", "cause": "x" * 10**6, "last_lines": "y" * 10**6}
    large = {"loss": "z" * 10**6}
    record.write({**told, "progress": large, "evaluation": large})
    kept = read_json(tmp_path / "exit.json") or {}
    assert kept == {
        "outcome": "crashed",
        "cause": "x" * 2000,
        "last_lines": None,
        "progress": None,
        "evaluation": None,
    }


def test_a_directory_that_was_removed_ends_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = ReservedRecord(run / "exit.json", 0)
    placeholder_of(run / "exit.json").unlink()
    run.rmdir()
    assert not record.write({"cause": "done"})


def test_room_that_somebody_removed_does_not_cost_the_record(tmp_path: Path) -> None:
    record = ReservedRecord(tmp_path / "exit.json", 0)
    placeholder_of(tmp_path / "exit.json").unlink()
    assert record.write({"cause": "done"})
    assert read_json(tmp_path / "exit.json") == {"cause": "done"}


def test_without_room_nothing_begins(small_disk: SmallDisk) -> None:
    small_disk.fill()
    with pytest.raises(OSError, match="No space left") as raised:
        reserve_space(small_disk.path / "exit.json", 1)
    assert raised.value.errno == errno.ENOSPC
    with suppress(FileNotFoundError):
        placeholder_of(small_disk.path / "exit.json").unlink()


def test_a_file_system_that_cannot_flush_a_directory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync

    def flush_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        flush(descriptor)

    monkeypatch.setattr("os.fsync", flush_files)
    write_json(tmp_path / "run.json", {"a": 1})
    assert read_json(tmp_path / "run.json") == {"a": 1}
    record = ReservedRecord(tmp_path / "exit.json", 1)
    record.try_write({"b": 2})
    record.close()
    assert read_json(tmp_path / "exit.json") == {"b": 2}
