"""CRCs of ranges that chunks, literals, carried bytes and zeros make up together."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, ZeroBytes
from zerotools.io.files.combine_crc32 import of_zeros
from zerotools.ops.execution.write_files import ChecksummedRange, checksum_bytes, known_parts

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
