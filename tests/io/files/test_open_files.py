from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles, sync_directory
from zerotools.io.files.source_stamps import Sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(6):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 4)
    return tmp_path


def first_bytes(read: object, count: int) -> list[int]:
    found = []
    for number in range(count):
        buffer = bytearray(1)
        read(f"{number}", 1, memoryview(buffer))  # type: ignore[operator]
        found += buffer
    return found


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_few_files_stay_open_whatever_a_thread_reads_at_once(root: Path) -> None:
    before = descriptors()
    with OpenFiles(root, most=2) as files:
        assert first_bytes(files.read_into, 6) == list(range(6))
        assert len(descriptors() - before) == 2
        with files.holding() as held:
            assert first_bytes(held.read_into, 6) == list(range(6))
            assert first_bytes(held.read_into, 6) == list(range(6))
            assert len(descriptors() - before) <= 3
        assert len(descriptors() - before) == 2
    assert descriptors() == before


def test_a_missing_file_leaves_the_others_usable(root: Path) -> None:
    (root / "3").unlink()
    with OpenFiles(root, most=2) as files:
        with files.holding() as held, pytest.raises(BadFile, match="3 is missing"):
            first_bytes(held.read_into, 6)
        assert first_bytes(files.read_into, 3) == [0, 1, 2]


def test_a_file_system_that_cannot_flush_a_directory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    number = errno.EINVAL
    sync_directory(tmp_path)
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_directory(tmp_path)


def test_a_file_that_has_changed_is_refused_at_each_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    sources = Sources()
    sources.record(tmp_path / "a", (tmp_path / "a").stat())
    (tmp_path / "a").write_bytes(b"newer")
    with OpenFiles(tmp_path, sources=sources) as files:
        for _ in range(2):
            with pytest.raises(BadFile, match="changed while it was read"):
                files.read_into("a", 0, memoryview(bytearray(3)))
