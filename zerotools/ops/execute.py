"""Write a target: tiles in parallel, within a byte budget, staged and renamed.

Each copy is cut into tiles that are contiguous in their target file. A tile is the unit of work:
one worker gathers it in its own buffers, casts, checksums and writes it. The budget is divided by
the number of workers, so peak memory depends on neither the model nor its largest tensor. Tiles
stay small even under a large budget, because they are fastest when they fit in a core's cache.
"""

from __future__ import annotations

import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.boxes import Box, BoxIndex, contiguous_pieces
from zerotools.core.checkpoint import Checksum, FilePlan, Key, Piece, Target
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.arrays import NO_LOSSES, CastLosses
from zerotools.io.copy import Scratch, gather
from zerotools.io.crc32 import combine
from zerotools.io.files import OpenFiles
from zerotools.io.staging import Staging
from zerotools.ops.plan import Copy

MAX_TILE_BYTES = 4 * 1024 * 1024
MIN_TILE_BYTES = 64 * 1024
DEFAULT_MAX_MEMORY = 1024**3
TASKS_PER_WORKER = 4
WIDEST_ITEM_BYTES = 16


@dataclass(frozen=True, slots=True)
class Budget:
    """`max_memory` bytes of buffers in all, over `workers` threads."""

    max_memory: int = DEFAULT_MAX_MEMORY
    workers: int = field(default_factory=lambda: min(8, len(os.sched_getaffinity(0))))

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadRequest(f"--workers is {self.workers}; at least 1 is needed")
        if self.tile_bytes < MIN_TILE_BYTES:
            least = MIN_TILE_BYTES * _BUFFERS_PER_WORKER * self.workers
            raise BadRequest(
                f"--max-memory is {self.max_memory} bytes; {self.workers} workers need at least "
                f"{least}"
            )

    @property
    def tile_bytes(self) -> int:
        """Bytes of one buffer of one worker."""
        share = self.max_memory // (self.workers * _BUFFERS_PER_WORKER)
        return min(MAX_TILE_BYTES, share) // WIDEST_ITEM_BYTES * WIDEST_ITEM_BYTES

    @property
    def most_memory(self) -> int:
        """Bytes of all buffers together, which is at most `max_memory`."""
        return self.tile_bytes * _BUFFERS_PER_WORKER * self.workers


# A worker holds a tile, what it read for it, and what numpy makes while it casts.
_BUFFERS_PER_WORKER = 3


@dataclass
class Report:
    """What was written. `losses` has an entry per tensor that overflowed in its cast, and per
    parameter with values that are not finite."""

    bytes_written: int = 0
    files: int = 0
    losses: dict[Key, CastLosses] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A box of a target chunk, its offset in the file, and the pieces that fill it."""

    copy: Copy
    box: Box
    offset: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _Written:
    key: Key
    file: str
    offset: int
    length: int
    crc: int
    losses: CastLosses


def execute(
    copies: Iterable[Copy],
    source_root: Path,
    target: Target,
    *,
    budget: Budget | None = None,
    overwrite: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Write `target` from `copies`, whose source files lie below `source_root`.

    `on_bytes` is told the size of each tile as it is written. `check` may raise before the output
    gets its name. The destination is there whole when this returns, and untouched when it raises.

    Raises:
        BadRequest: the destination exists or cannot be written.
        BadFile: a source file is missing, truncated or unreadable.
    """
    budget = budget or Budget()
    with Staging(target.checkpoint.root, overwrite=overwrite) as staging:
        for file, file_plan in target.files.items():
            _create(staging.directory / file, file_plan)
        with (
            OpenFiles(source_root) as reads,
            OpenFiles(staging.directory, os.O_RDWR) as writes,
        ):
            report = _Writer(target, reads, writes, budget, on_bytes).run(copies)
        target.seal(staging.directory)
        check(report)
        staging.commit()
    return report


def _create(path: Path, file_plan: FilePlan) -> None:
    """Make one output file at its full size, with everything but its chunks and checksums."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as output:
        output.truncate(file_plan.size)
        for literal in file_plan.literals:
            output.seek(literal.offset)
            output.write(literal.data)
        output.flush()
        for carried in file_plan.carried:
            with carried.source.open("rb") as source:
                _copy_range(
                    source.fileno(),
                    output.fileno(),
                    carried.source_offset,
                    carried.offset,
                    carried.length,
                    carried.source,
                )


def _copy_range(
    source: int, output: int, source_offset: int, offset: int, length: int, name: Path
) -> None:
    done = 0
    while done < length:
        data = os.pread(source, min(MAX_TILE_BYTES, length - done), source_offset + done)
        if not data:
            raise BadFile(
                f"{name} ends at byte {source_offset + done}, and {source_offset + length} were "
                "expected; it is truncated"
            )
        os.pwrite(output, data, offset + done)
        done += len(data)


class _Writer:
    def __init__(
        self,
        target: Target,
        reads: OpenFiles,
        writes: OpenFiles,
        budget: Budget,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._target = target
        self._reads = reads
        self._writes = writes
        self._budget = budget
        self._on_bytes = on_bytes
        self._local = threading.local()
        self._report = Report()
        self._crcs: dict[str, list[_Written]] = {}

    def run(self, copies: Iterable[Copy]) -> Report:
        pool = ThreadPoolExecutor(self._budget.workers, thread_name_prefix="tile")
        try:
            self._write_tiles(pool, copies)
            for file, file_plan in self._target.files.items():
                self._write_checksums(file, file_plan.checksums)
            for _ in pool.map(self._writes.sync, self._target.files):
                pass
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self._report.files = len(self._target.files)
        return self._report

    def _write_tiles(self, pool: ThreadPoolExecutor, copies: Iterable[Copy]) -> None:
        pending: set[Future[_Written]] = set()
        for tile in self._tiles(copies):
            pending.add(pool.submit(self._write_tile, tile))
            if len(pending) >= self._budget.workers * TASKS_PER_WORKER:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                self._account(done)
        done, _ = wait(pending)
        self._account(done)

    def _account(self, done: Iterable[Future[_Written]]) -> None:
        for future in done:
            written = future.result()
            self._report.bytes_written += written.length
            if written.losses != NO_LOSSES:
                before = self._report.losses.get(written.key, NO_LOSSES)
                self._report.losses[written.key] = before + written.losses
            if self._target.files[written.file].checksums:
                self._crcs.setdefault(written.file, []).append(written)
            self._on_bytes(written.length)

    def _tiles(self, copies: Iterable[Copy]) -> Iterator[_Tile]:
        for copy in copies:
            widest = max(copy.source_dtype.itemsize, copy.target_dtype.itemsize)
            index = BoxIndex([piece.box for piece in copy.pieces])
            offset = copy.target.offset
            for box in contiguous_pieces(copy.target.box, self._budget.tile_bytes // widest):
                pieces = tuple(
                    Piece(copy.pieces[position].chunk, common)
                    for position, common in index.meeting(box)
                )
                yield _Tile(copy, box, offset, pieces)
                offset += box.numel * copy.target_dtype.itemsize

    def _write_tile(self, tile: _Tile) -> _Written:
        copy = tile.copy
        data, losses = gather(
            self._reads,
            tile.pieces,
            tile.box,
            copy.source_dtype,
            copy.target_dtype,
            self._scratch(),
            counting=copy.key.role == "param",
        )
        file = copy.target.file
        crc = zlib.crc32(data) if self._target.files[file].checksums else 0
        self._writes.write_at(file, tile.offset, data)
        return _Written(copy.key, file, tile.offset, len(data), crc, losses)

    def _scratch(self) -> Scratch:
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = Scratch(self._budget.tile_bytes, self._budget.tile_bytes)
            self._local.scratch = scratch
        return scratch

    def _write_checksums(self, file: str, checksums: Sequence[Checksum]) -> None:
        """Combine the CRCs of each record's tiles, and write the whole's where it belongs."""
        parts = sorted(self._crcs.get(file, ()), key=lambda written: written.offset)
        offsets = [part.offset for part in parts]
        for checksum in checksums:
            crc, end = 0, checksum.start
            stop = checksum.start + checksum.length
            first = bisect_left(offsets, checksum.start)
            for part in parts[first : bisect_left(offsets, stop, lo=first)]:
                assert part.offset == end, f"{file}: a checksum covers bytes that no chunk wrote"
                crc = combine(crc, part.crc, part.length)
                end += part.length
            assert end == stop, f"{file}: a checksum is not covered"
            for offset in checksum.at:
                self._writes.write_at(file, offset, crc.to_bytes(4, "little"))
