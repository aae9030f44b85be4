"""Check values that are stored several times: that copies of a block are equal, and that weights
are casts of their masters.

Weights and masters are updated together at each step, and are stored in different files in
different orders. So this check shows whether flat buffers are at the positions that the files
record, and whether all files belong to the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunkBox, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import covering_ranges
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.compare_values import NOTHING_ODD, ValueCounts, are_equal, count_values
from zerotools.io.numeric.dtype_casts import numpy_cast, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.fill_tile import fill_tile
from zerotools.ops.execution.plan_copies import Copy
from zerotools.ops.execution.read_in_blocks import BLOCK_ELEMENTS, FlatValues
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import BoxPart, Tile

_PART_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Difference:
    """A weight that is not equal to the cast of its master.

    Of its `numel` elements, `elements` differ. The first of these has index `first` in the
    flattened tensor.
    """

    name: str
    elements: int
    numel: int
    first: int
    master: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    master: FlatValues
    weight: FlatValues


def differing_weights(
    checkpoint: Checkpoint, pairs: Iterable[tuple[str, Tensor, Tensor]], budget: MemoryBudget
) -> Iterator[Difference]:
    """Yield the weights that are not equal to the cast of their masters. NaN counts as equal to
    NaN.

    Raises:
        BadFile: a file is missing or truncated.
    """
    found: dict[int, Difference] = {}
    with OpenFiles(checkpoint.root) as opened, TileWorkers(budget) as workers:

        def work(
            block: tuple[int, _Pair, int, int], scratch: Scratch
        ) -> tuple[int, _Pair, int, int]:
            number, pair, begin, end = block
            return number, pair, *_compare(opened, pair, begin, end, scratch)

        for number, pair, elements, first in workers.share(_blocks(checkpoint, pairs), work):
            if elements:
                known = found.get(number)
                found[number] = Difference(
                    pair.name,
                    elements + (known.elements if known else 0),
                    pair.master.tensor.numel,
                    min(first, known.first) if known else first,
                    pair.master.tensor,
                    pair.weight.tensor,
                )
    yield from (found[number] for number in sorted(found))


def _blocks(
    checkpoint: Checkpoint, pairs: Iterable[tuple[str, Tensor, Tensor]]
) -> Iterator[tuple[int, _Pair, int, int]]:
    for number, (name, master, weight) in enumerate(pairs):
        if not (master.dtype.is_float and weight.dtype.is_float and master.numel):
            continue
        try:
            pair = _Pair(
                name,
                FlatValues(Key(name, "param"), master, checkpoint),
                FlatValues(Key(name, "param16"), weight, checkpoint),
            )
        except BadFile:  # the proof of the tensor reports missing elements
            continue
        for begin in range(0, master.numel, BLOCK_ELEMENTS):
            yield number, pair, begin, min(begin + BLOCK_ELEMENTS, master.numel)


def _compare(
    opened: OpenFiles, pair: _Pair, begin: int, end: int, scratch: Scratch
) -> tuple[int, int]:
    """Return the number of elements in [begin, end) that differ, and the index of the first one."""
    wide, narrow = pair.master.tensor.dtype, pair.weight.tensor.dtype
    room = min(_PART_BYTES, scratch.tile.nbytes // 4) // 16 * 16
    step = room // max(wide.itemsize, narrow.itemsize)
    masters, casts, weights = (scratch.tile[i * room : (i + 1) * room] for i in range(3))
    differing, first = 0, end
    with opened.holding() as held:
        for at in range(begin, end, step):
            count = min(step, end - at)
            ours = masters[: count * wide.itemsize]
            theirs = weights[: count * narrow.itemsize]
            pair.master.read(held, at, at + count, ours, scratch.read)
            pair.weight.read(held, at, at + count, theirs, scratch.read)
            cast = casts[: count * narrow.itemsize]
            numpy_cast(cast.view(numpy_dtype(narrow)), ours.view(numpy_dtype(wide)))
            if np.array_equal(cast, theirs):
                continue
            one, other = cast.view(numpy_dtype(narrow)), theirs.view(numpy_dtype(narrow))
            unequal = (one != other) & ~(np.isnan(one) & np.isnan(other))
            if (lost := int(np.count_nonzero(unequal))) and not differing:
                first = at + int(np.argmax(unequal))
            differing += lost
    return differing, first


def counts_of(
    checkpoint: Checkpoint, wanted: Mapping[Key, bool], budget: MemoryBudget
) -> dict[Key, ValueCounts]:
    """Count the NaN and infinite elements of the tensors `wanted`, and the negative ones where
    `wanted` is True. The tensors need not be contiguous in their files."""
    found: dict[Key, ValueCounts] = {}

    def blocks() -> Iterator[tuple[Key, FlatValues, int, int]]:
        for key in wanted:
            tensor = checkpoint.tensors[key]
            try:
                values = FlatValues(key, tensor, checkpoint)
            except BadFile:
                continue
            for begin in range(0, tensor.numel, BLOCK_ELEMENTS):
                yield key, values, begin, min(begin + BLOCK_ELEMENTS, tensor.numel)

    with OpenFiles(checkpoint.root) as opened, TileWorkers(budget) as workers:

        def work(
            block: tuple[Key, FlatValues, int, int], scratch: Scratch
        ) -> tuple[Key, ValueCounts]:
            key, values, first, end = block
            dtype, counts = values.tensor.dtype, NOTHING_ODD
            step = min(_PART_BYTES, scratch.tile.nbytes) // dtype.itemsize
            with opened.holding() as held:
                for at in range(first, end, step):
                    raw = scratch.tile[: (min(at + step, end) - at) * dtype.itemsize]
                    values.read(held, at, min(at + step, end), raw, scratch.read)
                    counts += count_values(raw.view(numpy_dtype(dtype)), negatives=wanted[key])
            return key, counts

        for key, counts in workers.share(blocks(), work):
            if counts != NOTHING_ODD:
                found[key] = found.get(key, NOTHING_ODD) + counts
    return found


def differing_replicas(
    source: Checkpoint,
    tensors: Mapping[Key, Tensor],
    budget: MemoryBudget,
    sources: Sources | None = None,
) -> Iterator[tuple[Key, str]]:
    """Compare each copy of a block, byte by byte, with the first copy of the block. Yield the key
    of the tensor and a sentence for each difference. With `sources`, files that changed are
    refused.

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
        found = bytes(fill_tile(files, tile, scratch)[0])
        known = first[part.key, piece.chunk]
        same = BoxPart(part.key, part.box, (ChunkBox(known, piece.box),))
        expected = fill_tile(
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
    """Yield each further copy of a block, with the first copy of that block."""
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
