"""Write the files of a target: create each at its full size, fill it tile by tile, add checksums,
flush it, and note it in the journal.

The CRC-32 of a record is combined from the CRC-32s of its parts, because several workers fill them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, Target
from zerotools.io.files.copy_bytes import SharedBlocks, copy_bytes, whole_blocks
from zerotools.io.files.crc32 import combine_crc32, crc32, of_zeros
from zerotools.io.files.open_files import NeededRange, OpenFiles
from zerotools.io.files.open_source import LocalSource
from zerotools.io.files.regular_files import source_file
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import NONE_LOST, Cast, LostValues
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.io.output.journal import Journal
from zerotools.ops.execution.fill_tile import Losses, fill_tile, moved_ranges, of_weights
from zerotools.ops.execution.plan_copies import Copy, RangeCopy
from zerotools.ops.execution.tile_workers import TileWorkers
from zerotools.ops.execution.tiles import Tile

FLUSH_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Written:
    file: str
    offset: int
    length: int
    crc: int
    losses: Losses
    shared: int = 0


class Writer:
    """Writes the files in `missing`, a dict from file names to numbers of tensor bytes.

    Several runs write the files in `cut` together, one range for each run. The checksums of these
    files are recorded in the journal and not written to the file.

    `bytes_shared` is the number of bytes that were not written because the file system shares their
    blocks with the source (reflink).
    """

    def __init__(
        self,
        target: Target,
        reads: OpenFiles,
        writes: OpenFiles,
        workers: TileWorkers,
        journal: Journal,
        missing: Mapping[str, int],
        cast: Cast,
        cut: Collection[str] = (),
    ) -> None:
        self._target = target
        self._reads = reads
        self._writes = writes
        self._workers = workers
        self._journal = journal
        self._missing = dict(missing)
        self._cast = cast
        self._cut = cut
        self._crcs: dict[str, list[ChecksummedRange]] = {}
        self._losses: dict[str, dict[Key, LostValues]] = {}
        self._finishing: list[Future[None]] = []
        self._unflushed = UnflushedBytes()
        self._blocks = SharedBlocks()
        self.bytes_shared = 0

    def run(self, copies: Iterable[Copy | RangeCopy]) -> Iterator[tuple[int, Losses]]:
        """Write the missing files tile by tile. Yield the size and the losses of each tile."""
        for file in [file for file, needed in self._missing.items() if not needed]:
            self._finish(file)
        remaining = (copy for copy in copies if copy.target.file in self._missing)
        for written in self._workers.each(remaining, self._write_tile, self._missing):
            self._account(written)
            yield written.length, written.losses
        for finishing in self._finishing:
            finishing.result()
        assert not any(self._missing.values()), f"not filled: {self._missing}"

    def _write_tile(self, tile: Tile, scratch: Scratch) -> _Written:
        is_weight = tile.role == "param"
        data, losses = fill_tile(self._reads, tile, scratch, counting=is_weight, cast=self._cast)
        losses = of_weights(tile, losses)
        crc = crc32(data) if self._target.files[tile.file].checksums else 0
        shared = self._write(tile, data)
        return _Written(tile.file, tile.offset, tile.nbytes, crc, losses, shared)

    def _write(self, tile: Tile, data: memoryview) -> int:
        """Write the bytes of a tile, except the blocks that the file can share with the source.
        Return the number of shared bytes.
        """
        at = written = shared = 0
        for moved in () if self._blocks.is_refused or self._reads.is_far else moved_ranges(tile):
            begin, end = whole_blocks(moved.begin, tile.offset + at, moved.end - moved.begin)
            if end and self._share(moved, tile, at, begin, end):
                self._writes.write_at(tile.file, tile.offset + written, data[written : at + begin])
                written, shared = at + end, shared + end - begin
            at += moved.end - moved.begin
        self._writes.write_at(tile.file, tile.offset + written, data[written:])
        return shared

    def _share(self, moved: NeededRange, tile: Tile, at: int, begin: int, end: int) -> bool:
        """Let the output share the bytes [begin, end) of the source range `moved`, which is at byte
        `at` of the tile. Return whether the file system did so."""
        with self._reads.source(moved.file) as source, self._writes.source(tile.file) as output:
            if not isinstance(
                source, LocalSource
            ):  # an array that is decoded: no file has its bytes
                return False
            assert isinstance(output, LocalSource)
            offset = tile.offset + at + begin
            ends = source.descriptor, moved.begin + begin, output.descriptor, offset
            return self._blocks.share(*ends, end - begin)

    def _account(self, written: _Written) -> None:
        file = written.file
        for key, losses in written.losses:
            lost = self._losses.setdefault(file, {})
            lost[key] = lost.get(key, NONE_LOST) + losses
        if self._target.files[file].checksums:
            part = ChecksummedRange(written.offset, written.length, written.crc)
            self._crcs.setdefault(file, []).append(part)
        self._missing[file] -= written.length
        self.bytes_shared += written.shared
        if not self._missing[file]:
            self._finish(file)
        else:
            self._flush_early(file, written.length)

    def _flush_early(self, file: str, length: int) -> None:
        """Note that `length` more bytes of `file` were written. If enough bytes wait, start to
        flush some of them, so that the final flush takes less time."""
        self._unflushed.add(file, length)
        if self._finishing and not self._finishing[-1].done():
            return
        file_to_flush = self._unflushed.take(FLUSH_BYTES)
        if file_to_flush is not None:
            # Its result counts: a disk reports an error to the first flush after it, and only to
            # that.
            self._finishing.append(self._workers.aside(partial(self._writes.sync, file_to_flush)))

    def _finish(self, file: str) -> None:
        """Finish `file` after its last tensor: add the checksums, flush it, and record it."""
        self._unflushed.remove(file)
        lost = self._losses.pop(file, {})
        noted: Any = [[key.name, key.role, *astuple(losses)] for key, losses in lost.items()]
        if file in self._cut:
            parts = joined_checksums(self._target.files[file].checksums, self._crcs.pop(file, []))
            noted = {"losses": noted, "checksummed": [list(astuple(each)) for each in parts]}
        else:
            self._write_checksums(file)
        self._finishing.append(self._workers.aside(partial(self._flush, file, noted)))

    def _flush(self, file: str, noted: Any) -> None:
        self._writes.sync(file)
        self._journal.add(file, noted)

    def _write_checksums(self, file: str) -> None:
        """Combine the CRC-32s of the parts of each record, and write the result to its position."""
        plan = self._target.files[file]
        parts = self._crcs.pop(file, [])
        parts += known_parts(plan, partial(crc_of, self._writes, file))
        for offset, data in checksum_bytes(plan.checksums, parts):
            self._writes.write_at(file, offset, data)


class UnflushedBytes:
    """The number of bytes in each file that were written since it was last flushed."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._since_take = 0

    def add(self, file: str, length: int) -> None:
        self._bytes[file] = self._bytes.get(file, 0) + length
        self._since_take += length

    def remove(self, file: str) -> None:
        self._bytes.pop(file, None)

    def take(self, least: int) -> str | None:
        """Remove the file with the most bytes, and return it. Return None until `least` bytes were
        added to all files since the last call that returned a file."""
        if self._since_take < least or not self._bytes:
            return None
        self._since_take = 0
        fullest = max(self._bytes, key=self._bytes.__getitem__)
        del self._bytes[fullest]
        return fullest


def shared_note(nbytes: int) -> tuple[str, ...]:
    """Return a tuple with the sentence about the bytes that an output shares with its source; empty
    for 0 bytes."""
    if not nbytes:
        return ()
    size = f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes} bytes"
    return (f"{size} were not copied: the output shares their blocks with the source",)


_READ_BYTES = 2**20


def create_file(path: Path, file_plan: FilePlan, sources: Sources, *, shared: bool = False) -> None:
    """Create an output file at its full size, with all bytes except tensors and checksums. With
    `shared`, other runs may have created the file and write their own parts of it.

    Raises:
        BadRequest: the disk is full, or the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if _make(path, shared=shared) else "xb") as output:
        try:
            if os.fstat(output.fileno()).st_size != file_plan.size:
                output.truncate(file_plan.size)
                reserve_blocks(output.fileno(), file_plan.size)
            for literal in file_plan.literals:
                output.seek(literal.offset)
                output.write(literal.data)
            output.flush()
        except OSError as error:
            raise BadRequest(
                f"{path} cannot be written: {error.strerror}; free some space, or choose another "
                "output"
            ) from error
        for carried in file_plan.carried:
            _carry(carried, output.fileno(), sources)


def _make(path: Path, *, shared: bool) -> bool:
    """Create an empty file for several runs (`shared`), unless one of them has done so. Return
    `shared`."""
    if shared:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return shared


def _carry(carried: CarriedBytes, output: int, sources: Sources) -> None:
    """Copy a range of bytes unchanged from a source file to the file descriptor `output`.

    Raises:
        BadFile: the source is truncated, or was changed since it was read.
    """
    path, begin, length = carried.source, carried.source_offset, carried.length
    with source_file(path) as source:
        sources.record(path, source.status())
        done = copy_bytes(source, begin, output, carried.offset, length)
    if done < length:
        raise BadFile(
            f"{path} ends at byte {begin + done}, but {begin + length} bytes were expected; it is "
            "truncated"
        )


def complete_file(path: Path, file_plan: FilePlan) -> None:
    """Complete a file that `create_file` made and that has no tensors: write its checksums."""
    if not file_plan.checksums:
        return
    with path.open("r+b") as output:

        def crc_of(offset: int, length: int) -> int:
            crc, end = 0, offset + length
            output.seek(offset)
            while offset < end:
                part = output.read(min(_READ_BYTES, end - offset))
                crc, offset = crc32(part, crc), offset + len(part)
            return crc

        for offset, data in checksum_bytes(file_plan.checksums, known_parts(file_plan, crc_of)):
            output.seek(offset)
            output.write(data)


@dataclass(frozen=True, slots=True)
class ChecksummedRange:
    """`length` bytes of a file, from byte `offset`, and their CRC-32."""

    offset: int
    length: int
    crc: int


def known_parts(plan: FilePlan, crc_of: Callable[[int, int], int]) -> Iterator[ChecksummedRange]:
    """Yield the ranges of the file without tensor data that a planned checksum covers, each with
    its CRC-32. `crc_of(offset, length)` computes the CRC-32 of bytes that were copied from a source
    file."""
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
            yield ChecksummedRange(literal.offset, len(literal.data), crc32(literal.data))
    for carried in plan.carried:
        if is_covered(carried.offset):
            crc = crc_of(carried.offset, carried.length)
            yield ChecksummedRange(carried.offset, carried.length, crc)


def joined_checksums(
    planned: Sequence[Checksum], parts: Iterable[ChecksummedRange]
) -> list[ChecksummedRange]:
    """Join neighbouring parts of one checksum into one part, and combine their CRC-32s."""
    ends = {end for each in planned for end in (each.start, each.start + each.length)}
    found: list[ChecksummedRange] = []
    for part in sorted(parts, key=lambda part: part.offset):
        before = found[-1] if found else None
        if before and before.offset + before.length == part.offset and part.offset not in ends:
            crc = combine_crc32(before.crc, part.crc, part.length)
            part = ChecksummedRange(before.offset, before.length + part.length, crc)
            found.pop()
        found.append(part)
    return found


def crc_of(files: OpenFiles, file: str, offset: int, length: int) -> int:
    """Return the CRC-32 of `length` bytes of a file, from byte `offset`."""
    crc, buffer = 0, memoryview(bytearray(min(length, _READ_BYTES)))
    for done in range(0, length, _READ_BYTES):
        part = buffer[: min(_READ_BYTES, length - done)]
        files.read_into(file, offset + done, part)
        crc = crc32(part, crc)
    return crc


def checksum_bytes(
    planned: Sequence[Checksum], parts: Iterable[ChecksummedRange]
) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the 4 bytes of each checksum to write.

    Raises:
        AssertionError: the parts do not cover a range exactly. This is a defect of zerotools.
    """
    ordered = sorted(parts, key=lambda part: part.offset)
    offsets = [part.offset for part in ordered]
    for checksum in planned:
        crc, end, stop = 0, checksum.start, checksum.start + checksum.length
        first = bisect_left(offsets, checksum.start)
        for part in ordered[first : bisect_left(offsets, stop, lo=first)]:
            assert part.offset == end, f"a checksum covers byte {end}, which nothing wrote"
            crc = combine_crc32(crc, part.crc, part.length)
            end += part.length
        assert end == stop, f"a checksum covers bytes {end} to {stop}, which nothing wrote"
        for offset in checksum.target_offset:
            yield offset, crc.to_bytes(4, "little")


# Reserves the blocks of a new file before it is written.
#
# On ext4, writes to reserved blocks need less processor time, because the file system does not
# reserve and look up each block separately. XFS gains nothing, tmpfs and btrfs write more slowly,
# and btrfs would not compress the file (benchmarks/results/reshard.md).

_EXT = 0xEF53  # ext2, ext3 and ext4; the first two refuse the call
_STATFS_BYTES = 256
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def file_system_type(descriptor: int) -> int:
    """Return the number that identifies the file system's type (`f_type` of statfs(2)), or 0 if it
    is not known.
    """
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(descriptor, status):
        return 0
    return int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)


def fallocate(descriptor: int, size: int) -> None:
    """Reserve the first `size` bytes of a file. `os.posix_fallocate` is not used, because it writes
    to each block if the file system cannot reserve blocks.

    Raises:
        OSError: the blocks are not reserved, or not all of them.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(descriptor, 0, ctypes.c_long(0), ctypes.c_long(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def reserve_blocks(
    descriptor: int,
    size: int,
    *,
    type_of: Callable[[int], int] = file_system_type,
    allocate: Callable[[int, int], None] = fallocate,
) -> None:
    """Reserve the blocks of a file of `size` bytes, on file systems on which this makes writing
    faster. Neither its size nor its bytes change. `type_of` and `allocate` are functions of the
    system, except in tests.

    Raises OSError if the disk is full, or if the user's quota is used up. After any other error,
    nothing is reserved, and the file is written as usual.
    """
    if not size or type_of(descriptor) != _EXT:
        return
    try:
        allocate(descriptor, size)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise
