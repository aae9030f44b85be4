"""The CRC-32 of a range of an output file, from the CRC-32s of its parts."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.target import Checksum, FilePlan
from zerotools.io.files.crc32 import combine, of_zeros
from zerotools.io.files.open_files import OpenFiles

_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ChecksummedRange:
    """`length` bytes of a file from `offset` on, and their CRC-32."""

    offset: int
    length: int
    crc: int


def known_parts(plan: FilePlan, crc_of: Callable[[int, int], int]) -> Iterator[ChecksummedRange]:
    """Yield the bytes of the plan itself inside ranges that have checksums.

    `crc_of(offset, length)` reads carried bytes back.
    """
    ranges = sorted((checksum.start, checksum.length) for checksum in plan.checksums)
    starts = [start for start, _ in ranges]

    def is_covered(offset: int) -> bool:
        position = bisect_left(starts, offset + 1) - 1
        return position >= 0 and offset < sum(ranges[position])

    for zeros in plan.zeros:
        if is_covered(zeros.offset):
            yield ChecksummedRange(zeros.offset, zeros.length, of_zeros(zeros.length))
    for literal in plan.literals:
        if is_covered(literal.offset):
            yield ChecksummedRange(literal.offset, len(literal.data), zlib.crc32(literal.data))
    for carried in plan.carried:
        if is_covered(carried.offset):
            crc = crc_of(carried.offset, carried.length)
            yield ChecksummedRange(carried.offset, carried.length, crc)


def joined(
    planned: Sequence[Checksum], parts: Iterable[ChecksummedRange]
) -> list[ChecksummedRange]:
    """Return fewer parts with the same content: consecutive parts of one checksum are joined."""
    ends = {end for each in planned for end in (each.start, each.start + each.length)}
    found: list[ChecksummedRange] = []
    for part in sorted(parts, key=lambda part: part.offset):
        before = found[-1] if found else None
        if before and before.offset + before.length == part.offset and part.offset not in ends:
            crc = combine(before.crc, part.crc, part.length)
            part = ChecksummedRange(before.offset, before.length + part.length, crc)
            found.pop()
        found.append(part)
    return found


def crc_of(files: OpenFiles, file: str, offset: int, length: int) -> int:
    """Return CRC-32 of bytes that are in a file already."""
    crc, buffer = 0, memoryview(bytearray(min(length, _READ_BYTES)))
    for done in range(0, length, _READ_BYTES):
        part = buffer[: min(_READ_BYTES, length - done)]
        files.read_into(file, offset + done, part)
        crc = zlib.crc32(part, crc)
    return crc


def checksums(
    planned: Sequence[Checksum], parts: Iterable[ChecksummedRange]
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, 4 bytes) of each checksum to write.

    Raises:
        AssertionError: a range is not exactly covered by the parts: our mistake.
    """
    ordered = sorted(parts, key=lambda part: part.offset)
    offsets = [part.offset for part in ordered]
    for checksum in planned:
        crc, end, stop = 0, checksum.start, checksum.start + checksum.length
        first = bisect_left(offsets, checksum.start)
        for part in ordered[first : bisect_left(offsets, stop, lo=first)]:
            assert part.offset == end, f"a checksum covers byte {end}, which nothing wrote"
            crc = combine(crc, part.crc, part.length)
            end += part.length
        assert end == stop, f"a checksum covers bytes {end} to {stop}, which nothing wrote"
        for offset in checksum.target_offset:
            yield offset, crc.to_bytes(4, "little")
