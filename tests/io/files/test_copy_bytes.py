from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.io.files.copy_bytes import (
    BLOCK_BYTES,
    LEAST_BYTES,
    SharedBlocks,
    copy_bytes,
    whole_blocks,
)
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


offsets = st.integers(0, 10 * BLOCK_BYTES)


@given(offsets, st.integers(0, 9), offsets, st.integers(0, 3 * LEAST_BYTES))
def test_only_whole_blocks_of_both_files(
    source: int, blocks: int, offset: int, length: int
) -> None:
    for source_offset in (source, offset + blocks * BLOCK_BYTES):
        begin, end = whole_blocks(source_offset, offset, length)
        assert 0 <= begin <= end <= length
        if end:
            edges = {at + edge for at in (source_offset, offset) for edge in (begin, end)}
            assert {each % BLOCK_BYTES for each in edges} == {0}
            assert begin < BLOCK_BYTES
            assert length - end < BLOCK_BYTES
        else:
            is_aligned = (source_offset - offset) % BLOCK_BYTES == 0
            assert not is_aligned or length < LEAST_BYTES + 2 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (errno.EOPNOTSUPP, True),
        (errno.EXDEV, True),
        (errno.EINVAL, True),
        (errno.ENOTTY, True),
        (errno.EINTR, False),
    ],
)
def test_a_refusal(code: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _request: int, _wanted: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    blocks = SharedBlocks()
    assert not blocks.share(3, 0, 4, 0, BLOCK_BYTES)
    assert blocks.is_refused is is_refused


def test_the_kernel_shares_blocks_or_refuses(tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK_BYTES)
    (tmp_path / "source").write_bytes(data)
    blocks = SharedBlocks()
    with (tmp_path / "source").open("rb") as source, (tmp_path / "output").open("w+b") as output:
        output.truncate(2 * BLOCK_BYTES)
        ends = source.fileno(), BLOCK_BYTES, output.fileno(), 0
        is_shared = blocks.share(*ends, BLOCK_BYTES)
    assert is_shared is not blocks.is_refused
    expected = (data[BLOCK_BYTES:] if is_shared else bytes(BLOCK_BYTES)) + bytes(BLOCK_BYTES)
    assert (tmp_path / "output").read_bytes() == expected
