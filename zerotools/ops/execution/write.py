"""Fill the files of a target, and note in the journal each that is complete."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from zerotools.core.checkpoint import Key
from zerotools.core.target import Target
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.gather import Scratch
from zerotools.io.numeric.numpy_dtypes import NO_LOSSES, Cast, CastLosses
from zerotools.io.output.journal import Journal
from zerotools.ops.execution.checksums import (
    ChecksummedRange,
    checksums,
    crc_of,
    joined,
    known_parts,
)
from zerotools.ops.execution.fill import Losses, fill, of_weights
from zerotools.ops.execution.plan import Copy, RangeCopy
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.execution.workers import TileWorkers

FLUSH_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Written:
    file: str
    offset: int
    length: int
    crc: int
    losses: Losses


class Writer:
    """`missing` are the files to write, and how many bytes of tensors each of them needs. Of those
    in `cut` this is a range, and others write the rest: their checksums are not written but noted.
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
        self._losses: dict[str, dict[Key, CastLosses]] = {}
        self._finishing: list[Future[None]] = []
        self._unflushed = 0

    def run(self, copies: Iterable[Copy | RangeCopy]) -> Iterator[tuple[int, Losses]]:
        """Write the tiles of the missing files; yield the size and the losses of each."""
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
        data, losses = fill(self._reads, tile, scratch, counting=is_weight, cast=self._cast)
        losses = of_weights(tile, losses)
        crc = zlib.crc32(data) if self._target.files[tile.file].checksums else 0
        self._writes.write_at(tile.file, tile.offset, data)
        return _Written(tile.file, tile.offset, tile.nbytes, crc, losses)

    def _account(self, written: _Written) -> None:
        file = written.file
        for key, losses in written.losses:
            lost = self._losses.setdefault(file, {})
            lost[key] = lost.get(key, NO_LOSSES) + losses
        if self._target.files[file].checksums:
            part = ChecksummedRange(written.offset, written.length, written.crc)
            self._crcs.setdefault(file, []).append(part)
        self._missing[file] -= written.length
        if not self._missing[file]:
            self._finish(file)
        else:
            self._flush_early(file, written.length)

    def _flush_early(self, file: str, length: int) -> None:
        """Let the disk write while tiles are made, so that the last flush has little to do."""
        self._unflushed += length
        if self._unflushed < FLUSH_BYTES or (self._finishing and not self._finishing[-1].done()):
            return
        self._unflushed = 0
        # Its result counts: a disk reports an error to the first flush after it, and only to that.
        self._finishing.append(self._workers.aside(partial(self._writes.sync, file)))

    def _finish(self, file: str) -> None:
        """Finish `file` after its last tensor: add the checksums, flush it, and record it."""
        lost = self._losses.pop(file, {})
        noted: Any = [[key.name, key.role, *astuple(losses)] for key, losses in lost.items()]
        if file in self._cut:
            parts = joined(self._target.files[file].checksums, self._crcs.pop(file, []))
            noted = {"losses": noted, "checksummed": [list(astuple(each)) for each in parts]}
        else:
            self._write_checksums(file)
        self._finishing.append(self._workers.aside(partial(self._flush, file, noted)))

    def _flush(self, file: str, noted: Any) -> None:
        self._writes.sync(file)
        self._journal.add(file, noted)

    def _write_checksums(self, file: str) -> None:
        """Combine the CRCs of each record's parts, and write the result to its position."""
        plan = self._target.files[file]
        parts = self._crcs.pop(file, [])
        parts += known_parts(plan, partial(crc_of, self._writes, file))
        for offset, data in checksums(plan.checksums, parts):
            self._writes.write_at(file, offset, data)
