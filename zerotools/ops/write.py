"""Fill the files of a target, and note in the journal each that is complete."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

from zerotools.core.checkpoint import Checksum, Key, Target
from zerotools.io.arrays import NO_LOSSES, Cast, CastLosses
from zerotools.io.copy import Scratch, gather
from zerotools.io.crc32 import combine
from zerotools.io.files import OpenFiles
from zerotools.io.journal import Journal
from zerotools.ops.plan import Copy
from zerotools.ops.tiles import Tile, Workers

FLUSH_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Written:
    key: Key
    file: str
    offset: int
    length: int
    crc: int
    losses: CastLosses


class Writer:
    """`missing` are the files to write, and how many bytes of tensors each of them needs."""

    def __init__(
        self,
        target: Target,
        reads: OpenFiles,
        writes: OpenFiles,
        workers: Workers,
        journal: Journal,
        missing: Mapping[str, int],
        cast: Cast,
    ) -> None:
        self._target = target
        self._reads = reads
        self._writes = writes
        self._workers = workers
        self._journal = journal
        self._missing = dict(missing)
        self._cast = cast
        self._crcs: dict[str, list[_Written]] = {}
        self._losses: dict[str, dict[Key, CastLosses]] = {}
        self._finishing: list[Future[None]] = []
        self._unflushed = 0

    def run(self, copies: Iterable[Copy]) -> Iterator[tuple[Key, int, CastLosses]]:
        """Write the tiles of the missing files; yields the tensor, size and losses of each."""
        for file in [file for file, needed in self._missing.items() if not needed]:
            self._finish(file)
        wanted = (copy for copy in copies if copy.target.file in self._missing)
        for written in self._workers.each(wanted, self._write_tile):
            self._account(written)
            yield written.key, written.length, written.losses
        for finishing in self._finishing:
            finishing.result()
        assert not any(self._missing.values()), f"not filled: {self._missing}"

    def _write_tile(self, tile: Tile, scratch: Scratch) -> _Written:
        copy = tile.copy
        data, losses = gather(
            self._reads,
            tile.pieces,
            tile.box,
            copy.source_dtype,
            copy.target_dtype,
            scratch,
            counting=copy.key.role == "param",
            cast=self._cast,
        )
        if copy.key.role != "param":  # an attention mask may well be infinite
            losses = replace(losses, nans=0, infinities=0)
        file = copy.target.file
        crc = zlib.crc32(data) if self._target.files[file].checksums else 0
        self._writes.write_at(file, tile.offset, data)
        return _Written(copy.key, file, tile.offset, len(data), crc, losses)

    def _account(self, written: _Written) -> None:
        file = written.file
        if written.losses != NO_LOSSES:
            lost = self._losses.setdefault(file, {})
            lost[written.key] = lost.get(written.key, NO_LOSSES) + written.losses
        if self._target.files[file].checksums:
            self._crcs.setdefault(file, []).append(written)
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
        """All tensors of `file` are in it: add the checksums, flush it, and note it."""
        self._write_checksums(file, self._target.files[file].checksums)
        lost = self._losses.pop(file, {})
        noted = [[key.name, key.role, *astuple(losses)] for key, losses in lost.items()]
        self._finishing.append(self._workers.aside(partial(self._flush, file, noted)))

    def _flush(self, file: str, noted: Any) -> None:
        self._writes.sync(file)
        self._journal.add(file, noted)

    def _write_checksums(self, file: str, checksums: Iterable[Checksum]) -> None:
        """Combine the CRCs of each record's tiles, and write the whole's where it belongs."""
        parts = sorted(self._crcs.pop(file, ()), key=lambda written: written.offset)
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
