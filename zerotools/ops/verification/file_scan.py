"""Read every byte of a checkpoint's files once: check the CRC-32 of each record, and count values
that are not finite.

`ClaimedBytes` maps the bytes of a file to the elements of tensors. A checkpoint of a thousand ranks
has millions of byte ranges, which are kept as rows of integers to save memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import local

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Ranges
from zerotools.io.files.crc32 import combine_crc32, crc32
from zerotools.io.files.open_files import OpenFiles, ThreadFiles
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.compare_values import NOTHING_ODD, ValueCounts, count_values
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.read_in_blocks import BLOCK_ELEMENTS
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.verification.tensor_digests import block_hasher, of_blocks

BLOCK_BYTES = BLOCK_ELEMENTS
STRETCH_BYTES = 2 * BLOCK_BYTES
"""The number of bytes that are read at a time. With fewer bytes, threads would wait longer for each
other."""
NEVER_NEGATIVE = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf"})
"""Roles of optimizer state that is never negative: a sum of squares, or a largest magnitude."""
# Enough for the bytes of a number that begins at the end of a read.
_SLACK = 16


@dataclass(frozen=True, slots=True)
class Record:
    """The bytes `[begin, begin + length)` of a file, with their expected CRC-32."""

    begin: int
    length: int
    crc: int
    name: str


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A file to read. `claimed_as` is its name in `ClaimedBytes`; None if it has no tensor.
    `records` are in order and do not overlap."""

    name: str
    size: int
    records: Sequence[Record] = ()
    claimed_as: str | None = None


@dataclass
class FileScan:
    """The result of reading one file.

    Attributes:
        damaged: the records with a wrong CRC-32, and the CRC-32 of their bytes.
        error: the reason why the file could not be read to its end.
        digest: the digest of all its bytes, if requested.
    """

    file: ScannedFile
    damaged: list[tuple[Record, int]] = field(default_factory=list)
    error: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class _Stretch:
    file: int
    begin: int
    length: int


@dataclass(slots=True)
class _Seen:
    stretch: _Stretch
    crcs: dict[int, tuple[int, int]]
    counts: list[tuple[int, ValueCounts]]
    digests: bytes = b""
    error: str | None = None


def scan_files(
    base: Path,
    files: Sequence[ScannedFile],
    claims: ClaimedBytes,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    digests: bool = False,
    records_only: bool = False,
    sources: Sources | None = None,
) -> tuple[list[FileScan], dict[Key, ValueCounts]]:
    """Read all `files` below `base`. Check their records, and count the NaN and infinite values of
    each tensor, and the negative values if its role cannot have them.

    With `digests`, the digest of each file is computed. With `records_only`, only blocks that
    contain a part of a record are read. With `sources`, an error is recorded for each file that has
    changed.
    """
    assert not (digests and records_only), "a digest is of all bytes"
    scans = [FileScan(file, digest=of_blocks(()) if digests else None) for file in files]
    left = [sum(1 for _ in _stretches(0, file, records_only)) for file in files]
    wanted = (_stretches(number, file, records_only) for number, file in enumerate(files))
    parts: list[list[_Seen]] = [[] for _ in files]
    counts: dict[Key, ValueCounts] = {}
    with OpenFiles(base, sources=sources) as opened, TileWorkers(budget) as workers:
        reader = _Reader(opened, files, claims, digests)
        for seen in workers.share(chain.from_iterable(wanted), reader.read):
            at = seen.stretch.file
            on_bytes(seen.stretch.length)
            for number, found in seen.counts:
                key = claims.keys[number]
                counts[key] = counts.get(key, NOTHING_ODD) + found
            scans[at].error = scans[at].error or seen.error
            parts[at].append(seen)
            left[at] -= 1
            if not left[at]:
                ordered = sorted(parts[at], key=lambda each: each.stretch.begin)
                scans[at].damaged += _damaged(files[at].records, ordered)
                if digests:
                    scans[at].digest = of_blocks(each.digests for each in ordered)
                parts[at] = []
    return scans, counts


class _BlockDigests:
    """Computes the digest of each block of a file from its bytes in order."""

    def __init__(self) -> None:
        self._ended = bytearray()
        self._hasher = block_hasher()
        self._left = BLOCK_BYTES

    def update(self, data: memoryview) -> None:
        while data:
            part = data[: self._left]
            self._hasher.update(part)
            self._left -= len(part)
            data = data[len(part) :]
            if not self._left:
                self._next()

    def _next(self) -> None:
        self._ended += self._hasher.digest()
        self._hasher, self._left = block_hasher(), BLOCK_BYTES

    def end(self) -> bytes:
        """Return the digests of all blocks, concatenated."""
        if self._left < BLOCK_BYTES:
            self._next()
        return bytes(self._ended)


def _stretches(number: int, file: ScannedFile, records_only: bool) -> Iterator[_Stretch]:
    starts = [record.begin for record in file.records]
    for begin in range(0, file.size, STRETCH_BYTES):
        end = min(begin + STRETCH_BYTES, file.size)
        if not records_only or _meeting(file.records, starts, begin, end):
            yield _Stretch(number, begin, end - begin)


def _meeting(records: Sequence[Record], starts: Sequence[int], begin: int, end: int) -> range:
    """Return the indices of the records that overlap the bytes [begin, end). `starts` are their
    first bytes."""
    first = bisect_left(starts, begin)
    if first and records[first - 1].begin + records[first - 1].length > begin:
        first -= 1
    return range(first, bisect_left(starts, end))


def _damaged(records: Sequence[Record], parts: list[_Seen]) -> Iterator[tuple[Record, int]]:
    """Yield each record with a wrong CRC-32, and the CRC-32 of its bytes."""
    found = [0] * len(records)
    for part in parts:
        for number, (crc, length) in part.crcs.items():
            found[number] = combine_crc32(found[number], crc, length) if found[number] else crc
    for record, crc in zip(records, found, strict=True):
        if crc != record.crc:
            yield record, crc


class _Reader:
    """Reads parts of files. All threads share one instance."""

    def __init__(
        self,
        opened: OpenFiles,
        files: Sequence[ScannedFile],
        claims: ClaimedBytes,
        digests: bool,
    ) -> None:
        self._opened = opened
        self._files = files
        self._claims = claims
        self._digests = digests
        self._own = local()
        self._starts: Mapping[int, list[int]] = {
            number: [record.begin for record in file.records] for number, file in enumerate(files)
        }

    def read(self, stretch: _Stretch, scratch: Scratch) -> _Seen:
        seen = _Seen(stretch, {}, [])
        buffer = self._buffer(scratch)
        step = min(STRETCH_BYTES, buffer.nbytes - _SLACK)
        digests = _BlockDigests() if self._digests else None
        with self._opened.holding() as held:
            for begin in range(stretch.begin, stretch.begin + stretch.length, step):
                end = min(begin + step, stretch.begin + stretch.length)
                try:
                    self._read(held, seen, begin, end, buffer)
                    if digests is not None:
                        digests.update(buffer[: end - begin].data)
                except BadFile as error:
                    seen.error = str(error)
                    break
        if digests is not None:
            seen.digests = digests.end()
        return seen

    def _buffer(self, scratch: Scratch) -> Array:
        """Return this thread's buffer for one read. With a small memory budget it is the buffer of
        a tile, and one read gets fewer bytes."""
        if scratch.tile.nbytes < BLOCK_BYTES:
            return scratch.tile
        if not hasattr(self._own, "buffer"):
            self._own.buffer = np.empty(STRETCH_BYTES + _SLACK, np.uint8)
        buffer: Array = self._own.buffer
        return buffer

    def _read(self, held: ThreadFiles, seen: _Seen, begin: int, end: int, buffer: Array) -> None:
        file = self._files[seen.stretch.file]
        most = min(end + _SLACK, file.size)
        data = buffer[: most - begin]
        held.read_into(file.name, begin, data.data)
        for number in self._records(seen.stretch.file, begin, end):
            record = file.records[number]
            first, stop = max(begin, record.begin), min(end, record.begin + record.length)
            crc, length = seen.crcs.get(number, (0, 0))
            part = data[first - begin : stop - begin].data
            seen.crcs[number] = (crc32(part, crc), length + stop - first)
        if file.claimed_as is not None:
            for first, stop, number in self._claims.within(file.claimed_as, begin, end):
                found = self._count(number, first, stop, begin, end, data)
                if found != NOTHING_ODD:
                    seen.counts.append((number, found))

    def _records(self, file: int, begin: int, end: int) -> range:
        return _meeting(self._files[file].records, self._starts[file], begin, end)

    def _count(
        self, number: int, first: int, stop: int, begin: int, end: int, data: Array
    ) -> ValueCounts:
        """Return the counts of NaN, infinite and negative elements that begin in the bytes [begin,
        end) of a file, which `data` holds."""
        key, tensor = self._claims.keys[number], self._claims.tensors[number]
        size = tensor.dtype.itemsize
        skipped = max(0, -(-(begin - first) // size))
        until = min(-(-(end - first) // size), (stop - first) // size)
        at = first + skipped * size - begin
        values = data[at : at + max(0, until - skipped) * size]
        whole = values.nbytes // size * size
        return count_values(
            values[:whole].view(numpy_dtype(tensor.dtype)), negatives=key.role in NEVER_NEGATIVE
        )


@dataclass(frozen=True)
class ClaimedBytes:
    """The bytes of files that are elements of tensors.

    Attributes:
        keys: the tensors of floating-point numbers. The index of a tensor is its number.
        places: rows (first byte, end, number of the tensor, largest end of this and earlier rows)
            for each file, in order.
        elsewhere: the tensors with elements that are not contiguous in their files. A pass over a
            file cannot tell which of its bytes belong to them.
    """

    keys: list[Key] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    places: dict[str, Array] = field(default_factory=dict)
    elsewhere: list[Key] = field(default_factory=list)

    def within(self, file: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of tensors that overlap the bytes [begin, end) of a file, each as (first
        byte, end, number of the tensor)."""
        places = self.places.get(file)
        if places is None:
            return
        first = int(places[:, 3].searchsorted(begin, "right"))
        last = int(places[:, 0].searchsorted(end, "left"))
        for start, stop, number, _ in places[first:last].tolist():
            if stop > begin:
                yield start, stop, number


def claims_of(checkpoint: Checkpoint) -> ClaimedBytes:
    """Return the claimed bytes of all tensors of floating-point numbers. Of several chunks with the
    same box, only the first counts."""
    claims, rows = ClaimedBytes(), dict[str, "array[int]"]()
    for key, tensor in checkpoint.tensors.items():
        if not tensor.dtype.is_float or not tensor.numel:
            continue
        try:
            found = list(_extents(tensor))
        except BadFile:  # the proof of a tensor reports faults of its items
            continue
        if any(size is None for _, _, size in found):
            claims.elsewhere.append(key)
            continue
        number = len(claims.keys)
        claims.keys.append(key)
        claims.tensors.append(tensor)
        for file, offset, size in found:
            rows.setdefault(file, array("q")).extend((offset, offset + (size or 0), number))
    for file, numbers in rows.items():
        table = np.frombuffer(numbers, np.int64).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        reach = np.maximum.accumulate(table[:, 1])
        # By columns: on one that is not contiguous, each search would make a copy first.
        claims.places[file] = np.asfortranarray(np.column_stack((table, reach)))
    return claims


def _extents(tensor: Tensor) -> Iterator[tuple[str, int, int | None]]:
    """Yield the file, the offset and the size in bytes of each box once. The size is None for a box
    that is not contiguous."""
    itemsize = tensor.dtype.itemsize
    if isinstance(tensor.chunks, Ranges):
        for begin, end, file, offset in tensor.chunks.each():
            yield file, offset, (end - begin) * itemsize
        return
    known: set[Box] = set()
    for chunk in tensor.chunks:
        if chunk.box.is_empty or chunk.box in known:
            continue
        known.add(chunk.box)
        size = chunk.box.numel * itemsize
        yield chunk.file, chunk.offset, size if chunk.extent(tensor.dtype) == size else None
