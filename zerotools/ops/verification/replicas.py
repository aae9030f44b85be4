"""A check that saved copies of the same block are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunkBox, Key, Tensor
from zerotools.core.flat_ranges import covering_ranges
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.equal_bytes import are_equal
from zerotools.io.numeric.gather import Scratch
from zerotools.ops.execution.fill import fill
from zerotools.ops.execution.plan import Copy
from zerotools.ops.execution.tiles import BoxPart, Tile
from zerotools.ops.execution.workers import MemoryBudget, TileWorkers


def differing_replicas(
    source: Checkpoint,
    tensors: Mapping[Key, Tensor],
    budget: MemoryBudget,
    sources: Sources | None = None,
) -> Iterator[tuple[Key, str]]:
    """Compare each further copy of a block with its first, byte by byte; yield each part that
    differs, with the difference. With `sources`, changed files are refused.

    Raises:
        BadFile: a file is truncated or changed.
    """
    first: dict[tuple[Key, Chunk], Chunk] = {}

    def copies() -> Iterator[Copy]:
        for key, tensor in tensors.items():
            if covering_ranges(tensor, source.files) is None:
                for other, known in _replicas(tensor):
                    first[key, other] = known
                    target = Chunk(other.box, other.file, other.offset)
                    yield Copy(
                        key, target, tensor.dtype, tensor.dtype, (ChunkBox(other, other.box),)
                    )

    def compare(tile: Tile, scratch: Scratch) -> tuple[Key, str] | None:
        (part,) = tile.parts
        assert isinstance(part, BoxPart)
        (piece,) = part.pieces
        found = bytes(fill(files, tile, scratch)[0])
        known = first[part.key, piece.chunk]
        same = BoxPart(part.key, part.box, (ChunkBox(known, piece.box),))
        expected = fill(
            files,
            Tile(known.file, 0, tile.nbytes, tile.source_dtype, tile.target_dtype, (same,)),
            scratch,
        )[0]
        if are_equal(found, expected):
            return None
        return part.key, _difference(source, part.key, known, piece.chunk, found, bytes(expected))

    with OpenFiles(source.root, sources=sources) as files, TileWorkers(budget) as workers:
        for difference in workers.each(copies(), compare):
            if difference is not None:
                yield difference


def _replicas(tensor: Tensor) -> Iterator[tuple[Chunk, Chunk]]:
    """Yield (copy, first) of every block that is in several positions."""
    known: dict[Box, Chunk] = {}
    for chunk in tensor.chunks:
        if chunk.box.is_empty:
            continue
        one = known.setdefault(chunk.box, chunk)
        if (one.file, one.offset) != (chunk.file, chunk.offset):
            yield chunk, one


def _difference(
    source: Checkpoint, key: Key, first: Chunk, other: Chunk, found: bytes, expected: bytes
) -> str:
    ours, theirs = np.frombuffer(found, np.uint8), np.frombuffer(expected, np.uint8)
    differing = int(np.count_nonzero(ours != theirs))
    return (
        f"{source.origin.path}: {key} is saved in {first.file} and in {other.file}, and the copies "
        f"differ in {differing} of {len(found)} bytes that were compared: they are from different "
        "saves, or one is damaged"
    )
