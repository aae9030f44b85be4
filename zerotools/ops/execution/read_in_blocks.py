"""Read the elements of tensors in row-major order, block by block, whatever their positions in
files.

A block has BLOCK_ELEMENTS elements, and a worker reads it in parts that fit in its buffers. So the
memory use depends neither on the checkpoint nor on its largest tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from zerotools.core.boxes import BoxIndex, boxes_of_range
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunkBox, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.flat_ranges import Range, covering_ranges
from zerotools.io.files.open_files import OpenFiles, ThreadFiles
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import Array, numpy_cast
from zerotools.io.numeric.gather_elements import Scratch, gather_elements, gather_flat
from zerotools.ops.execution.plan_copies import distinct_chunks
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers

BLOCK_ELEMENTS = 2**20
_PART_BYTES = 2**19

Result = TypeVar("Result")


class FlatValues:
    """The elements of one tensor in row-major order, whatever their positions in files.

    Raises:
        BadFile: chunks do not cover the tensor, or do not lie inside their files.
    """

    def __init__(self, key: Key, tensor: Tensor, checkpoint: Checkpoint) -> None:
        self.tensor = tensor
        self._ranges = covering_ranges(tensor, checkpoint.files)
        self._starts = [each.begin for each in self._ranges or ()]
        self._chunks: list[Chunk] = []
        if self._ranges is None:
            self._chunks = distinct_chunks(key, tensor, checkpoint)
            self._index = BoxIndex([chunk.box for chunk in self._chunks])

    def read(self, held: ThreadFiles, begin: int, end: int, raw: Array, buffer: Array) -> None:
        """Read elements [begin, end) into the bytes `raw`. `buffer` is for intermediate data."""
        dtype = self.tensor.dtype
        if self._ranges is not None:
            gather_flat(held, self._within(self._ranges, begin, end), dtype.itemsize, raw.data)
            return
        at = 0
        for box in boxes_of_range(self.tensor.shape, begin, end):
            own = raw[at : at + box.numel * dtype.itemsize]
            overlapping = self._index.overlapping(box)
            pieces = [ChunkBox(self._chunks[number], common) for number, common in overlapping]
            gather_elements(held, pieces, box, dtype, dtype, own, buffer, numpy_cast)
            at += own.nbytes

    def _within(self, ranges: list[Range], begin: int, end: int) -> Iterator[Range]:
        at, itemsize = bisect_right(self._starts, begin) - 1, self.tensor.dtype.itemsize
        while begin < end:
            first, stop, file, offset = ranges[at]
            until = min(stop, end)
            if until > begin:
                yield Range(begin, until, file, offset + (begin - first) * itemsize)
            begin, at = max(begin, until), at + 1


@dataclass(frozen=True, slots=True)
class ElementBlock:
    """Elements [begin, end) of a flattened tensor. `number` is the index of the block, from 0."""

    key: Key
    values: FlatValues
    number: int
    begin: int
    end: int

    @property
    def dtype(self) -> DType:
        return self.values.tensor.dtype

    @property
    def nbytes(self) -> int:
        return (self.end - self.begin) * self.dtype.itemsize

    def parts(self, held: ThreadFiles, scratch: Scratch) -> Iterator[Array]:
        """Yield the bytes of the block in order, part by part. An array is valid until the next one
        is requested."""
        itemsize = self.dtype.itemsize
        step = min(_PART_BYTES, scratch.tile.nbytes) // max(itemsize, 2)
        for begin in range(self.begin, self.end, step):
            end = min(begin + step, self.end)
            raw = scratch.tile[: (end - begin) * itemsize]
            self.values.read(held, begin, end, raw, scratch.read)
            yield raw


def share_blocks(
    checkpoint: Checkpoint,
    keys: Iterable[Key],
    budget: MemoryBudget,
    work: Callable[[ElementBlock, Iterator[Array], Scratch], Result],
    sources: Sources | None = None,
) -> Iterator[tuple[ElementBlock, Result]]:
    """Call `work` for each block of the tensors `keys`, in the threads of `budget`. `work` gets the
    block, an iterator over the parts of its data, and buffers. Yield each block with its result, in
    any order. With `sources`, a file that has changed is refused.

    Raises:
        BadFile: a tensor is incomplete, or a file is missing or truncated.
    """
    with OpenFiles(checkpoint.root, sources=sources) as opened, TileWorkers(budget) as workers:

        def each(block: ElementBlock, scratch: Scratch) -> tuple[ElementBlock, Result]:
            with opened.holding() as held:
                return block, work(block, block.parts(held, scratch), scratch)

        yield from workers.share(_blocks(checkpoint, keys), each)


def _blocks(checkpoint: Checkpoint, keys: Iterable[Key]) -> Iterator[ElementBlock]:
    for key in keys:
        tensor = checkpoint.tensors[key]
        if not tensor.numel:
            continue
        values = FlatValues(key, tensor, checkpoint)
        for number, begin in enumerate(range(0, tensor.numel, BLOCK_ELEMENTS)):
            yield ElementBlock(
                key, values, number, begin, min(begin + BLOCK_ELEMENTS, tensor.numel)
            )
