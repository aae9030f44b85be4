from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zerotools.io.files.copy_bytes import copy_bytes
from zerotools.io.files.open_source import LocalSource

SHARED_MEMORY = Path("/dev/shm")
DATA = bytes(range(256)) * 12_000


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def carried(source: Path, begin: int, output: Path, offset: int, length: int) -> int:
    with opened(source, os.O_RDONLY) as read, opened(output, os.O_RDWR) as write:
        return copy_bytes(LocalSource(read), begin, write, offset, length)


def in_kernel(read: int, write: int) -> bool:
    try:
        return os.copy_file_range(read, write, 1, 0, 0) > 0
    except OSError:
        return False


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.write_bytes(b"-" * 20)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory of another file system, from which the system copies nothing by itself."""
    places = [SHARED_MEMORY, Path(tempfile.gettempdir()), Path.cwd()]
    there = [p for p in places if p.is_dir() and p.stat().st_dev != tmp_path.stat().st_dev]
    if not there:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=there[0]) as directory:
        yield Path(directory)


def test_a_stretch_goes_where_it_belongs(tmp_path: Path, output: Path) -> None:
    (tmp_path / "in").write_bytes(DATA)
    assert carried(tmp_path / "in", 5, output, 7, 10) == 10
    assert output.read_bytes() == b"-" * 7 + DATA[5:15] + b"-" * 3
    assert carried(tmp_path / "in", 3, output, 20, len(DATA) - 3) == len(DATA) - 3
    assert output.read_bytes()[20:] == DATA[3:]


def test_where_the_source_ends_early_the_count_says_so(tmp_path: Path, output: Path) -> None:
    (tmp_path / "in").write_bytes(DATA[:100])
    assert carried(tmp_path / "in", 90, output, 0, 30) == 10
    assert carried(tmp_path / "in", 200, output, 0, 30) == 0
    assert carried(tmp_path / "in", 0, output, 0, 0) == 0
    assert output.read_bytes() == DATA[90:100] + b"-" * 10


def test_between_file_systems_it_goes_through_memory(elsewhere: Path, output: Path) -> None:
    (elsewhere / "in").write_bytes(DATA)
    with opened(elsewhere / "in", os.O_RDONLY) as read, opened(output, os.O_RDWR) as write:
        if in_kernel(read, write):
            pytest.skip("the system copies between these file systems")
        assert copy_bytes(LocalSource(read), 1, write, 2, len(DATA)) == len(DATA) - 1
    assert output.read_bytes() == b"--" + DATA[1:]


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path, output: Path) -> None:
    (tmp_path / "in").write_bytes(DATA)
    with (
        opened(tmp_path / "in", os.O_RDONLY) as read,
        opened(output, os.O_RDONLY) as write,
        pytest.raises(OSError, match="Bad file descriptor"),
    ):
        copy_bytes(LocalSource(read), 0, write, 0, 10)
