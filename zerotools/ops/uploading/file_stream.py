"""The bytes of one file of a conversion, in order, with its checksums.

An archive has the CRC-32 of a record before the record, too, and a store takes the bytes of an
object in order. So records are made ahead, as many as fit in `held`, and sent when their CRC-32 is
known; a record that is larger is made twice.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from zerotools.core.target import Checksum, FilePlan
from zerotools.ops.serving.byte_source import ByteSource, Note


def file_stream(
    source: ByteSource, file: str, plan: FilePlan, held: int, note: Note
) -> Iterator[bytes]:
    """Yield all bytes of `file`, in pieces of bounded size. `note` is as that of `ByteSource.read`,
    and gets each byte once. The errors are the same."""
    patches = _Patches()
    ordered = sorted(plan.checksums, key=lambda each: each.start)
    at = first = 0
    while first < len(ordered):
        begin, end, following = _span(ordered, first, held)
        if following == first:  # too large to be held
            large = ordered[first]
            crc = 0
            for data in source.read(file, large.start, large.start + large.length):
                crc = zlib.crc32(data, crc)
            patches.add(large, crc)
            first += 1
            continue
        yield from patches.put(source.read(file, at, begin, note), at)
        made = bytearray()
        for data in source.read(file, begin, end, note):
            made += data
        view = memoryview(made)
        for each in ordered[first:following]:
            start = each.start - begin
            patches.add(each, zlib.crc32(view[start : start + each.length]))
        view.release()
        yield from patches.put(iter((bytes(made),)), begin)
        at, first = end, following
    yield from patches.put(source.read(file, at, plan.size, note), at)


def _span(ordered: Sequence[Checksum], first: int, held: int) -> tuple[int, int, int]:
    """Return the stretch of the records that are held together, and the number of the one after
    them."""
    begin = end = min(ordered[first].start, *ordered[first].target_offset)
    number = first
    while number < len(ordered):
        stop = ordered[number].start + ordered[number].length
        if stop - begin > held:
            break
        end, number = stop, number + 1
    return begin, end, number


class _Patches:
    """The known checksums, by their position."""

    def __init__(self) -> None:
        self._known: list[tuple[int, bytes]] = []

    def add(self, checksum: Checksum, crc: int) -> None:
        for offset in checksum.target_offset:
            insort(self._known, (offset, crc.to_bytes(4, "little")))

    def put(self, pieces: Iterator[bytes], at: int) -> Iterator[bytes]:
        """Yield pieces that follow one another from byte `at` on, with the checksums in them."""
        for piece in pieces:
            first = bisect_left(self._known, (at - 3, b""))
            last = bisect_left(self._known, (at + len(piece), b""))
            if first < last:
                changed = bytearray(piece)
                for offset, data in self._known[first:last]:
                    begin, end = max(offset, at), min(offset + 4, at + len(piece))
                    changed[begin - at : end - at] = data[begin - offset : end - offset]
                yield bytes(changed)
            else:
                yield piece
            at += len(piece)
