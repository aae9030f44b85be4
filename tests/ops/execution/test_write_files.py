"""CRCs of ranges that chunks, literals, carried bytes and zeros make up together."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, ZeroBytes
from zerotools.io.files.crc32 import of_zeros
from zerotools.ops.execution.write_files import (
    ChecksummedRange,
    UnflushedBytes,
    checksum_bytes,
    fallocate,
    file_system_type,
    known_parts,
    reserve_blocks,
)

KINDS = ("chunk", "literal", "carried", "zeros")
runs = st.lists(
    st.tuples(st.sampled_from(KINDS), st.binary(min_size=1, max_size=9)), min_size=1, max_size=8
)


@given(st.integers(0, 5000))
def test_the_crc_of_zeros(length: int) -> None:
    assert of_zeros(length) == zlib.crc32(bytes(length))


@given(runs, st.integers(0, 7))
def test_a_range_of_any_parts(parts: list[tuple[str, bytes]], start: int) -> None:
    literals, carried, zeros, chunks = [], [], [], []
    content, at = bytearray(start), start
    for kind, drawn in parts:
        data = bytes(len(drawn)) if kind == "zeros" else drawn
        if kind == "chunk":
            chunks.append(ChecksummedRange(at, len(data), zlib.crc32(data)))
        elif kind == "literal":
            literals.append(LiteralBytes(at, data))
        elif kind == "carried":
            carried.append(CarriedBytes(at, Path("source"), 0, len(data)))
        else:
            zeros.append(ZeroBytes(at, len(data)))
        content += data
        at += len(data)
    wanted = Checksum(start, at - start, (at, at + 8))
    plan = FilePlan(at + 12, literals, carried, [wanted], zeros)
    known = known_parts(plan, lambda offset, length: zlib.crc32(content[offset : offset + length]))
    expected = zlib.crc32(content[start:]).to_bytes(4, "little")
    assert list(checksum_bytes([wanted], [*chunks, *known])) == [(at, expected), (at + 8, expected)]


def test_bytes_outside_of_ranges_are_not_read() -> None:
    def never(offset: int, length: int) -> int:
        raise AssertionError(f"read {length} bytes at {offset}")

    plan = FilePlan(
        30,
        [LiteralBytes(0, b"head")],
        [CarriedBytes(20, Path("source"), 0, 4)],
        [Checksum(8, 4, (28,))],
        [ZeroBytes(12, 2)],
    )
    assert list(known_parts(plan, never)) == []


def test_what_nothing_wrote_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="byte 4, which nothing wrote"):
        list(
            checksum_bytes(
                [Checksum(0, 12, (12,))], [ChecksummedRange(0, 4, 1), ChecksummedRange(8, 4, 1)]
            )
        )
    with pytest.raises(AssertionError, match="bytes 4 to 12"):
        list(checksum_bytes([Checksum(0, 12, (12,))], [ChecksummedRange(0, 4, 1)]))


EXT, XFS = 0xEF53, 0x58465342
SIZE = 3 * 2**20 + 5


def refusing(code: int) -> Callable[[int, int], None]:
    def allocate(_descriptor: int, _size: int) -> None:
        raise OSError(code, os.strerror(code))

    return allocate


def test_neither_size_nor_bytes_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(SIZE)
        os.pwrite(file.fileno(), b"header", 64)
        reserve_blocks(file.fileno(), SIZE)
        taken = os.fstat(file.fileno()).st_blocks * 512
        kind = file_system_type(file.fileno())
    data = path.read_bytes()
    assert (len(data), data[64:70], data.strip(b"\0")) == (SIZE, b"header", b"header")
    assert kind != 0
    assert (taken >= SIZE) is (kind == EXT)


def test_other_file_systems_are_left_alone() -> None:
    reserve_blocks(0, SIZE, type_of=lambda _: XFS, allocate=refusing(errno.ENOSPC))
    reserve_blocks(0, 0, type_of=lambda _: EXT, allocate=refusing(errno.ENOSPC))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR])
def test_a_refusal_leaves_an_ordinary_file(code: int) -> None:
    asked: list[tuple[int, int]] = []

    def allocate(descriptor: int, size: int) -> None:
        asked.append((descriptor, size))
        raise OSError(code, os.strerror(code))

    reserve_blocks(7, SIZE, type_of=lambda _: EXT, allocate=allocate)
    assert asked == [(7, SIZE)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_before_anything_is_written(code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        reserve_blocks(0, SIZE, type_of=lambda _: EXT, allocate=refusing(code))
    assert raised.value.errno == code


def test_errors_of_the_system_are_raised(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"Bad file|not supported") as raised:
            fallocate(descriptor, SIZE)
        assert raised.value.errno in (errno.EBADF, errno.EOPNOTSUPP)
    finally:
        os.close(descriptor)
    assert file_system_type(descriptor) == 0


def test_files_that_are_written_in_turn_are_flushed_in_turn() -> None:
    unflushed, flushed = UnflushedBytes(), []
    for number in range(64):
        unflushed.add(f"file {number % 4}", 2)
        if (file := unflushed.take(least=16)) is not None:
            flushed.append(file)
    assert flushed == [f"file {number % 4}" for number in range(8)]


def test_a_finished_file_is_not_flushed_early() -> None:
    unflushed = UnflushedBytes()
    unflushed.add("finished", 100)
    assert unflushed.take(least=101) is None
    unflushed.remove("finished")
    unflushed.add("other", 1)
    assert unflushed.take(least=101) == "other"
    assert unflushed.take(least=1) is None
