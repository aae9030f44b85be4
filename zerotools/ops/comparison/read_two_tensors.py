"""Read the same elements of two tensors, block by block. The two tensors may be split and stored in
different ways.

If both tensors are stored as ranges of the flattened tensor, a block is such a range. Otherwise a
block is a box that is also a range of the flattened tensor. An `AdaptedTensor` is a weight with an
adapter added in fp32, computed block by block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import local
from typing import NamedTuple

import numpy as np

from zerotools.core.adapter_tensor_names import DEFAULT, adapter_tensors
from zerotools.core.boxes import Box, BoxIndex, contiguous_boxes
from zerotools.core.checkpoint import Checkpoint, ChunkBox, Key
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.flat_ranges import Range, covering_ranges
from zerotools.formats import FORMATS, FormatTable, read_any
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.dtype_casts import Array, as_type, numpy_cast, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch, gather_elements, gather_flat
from zerotools.ops.execution.plan_copies import distinct_chunks
from zerotools.ops.weights.adapted_model import plain_weights
from zerotools.ops.weights.adapter_arithmetic import Change, block_reader, merged_change
from zerotools.ops.weights.adapter_config import (
    check_config,
    read_adapter_config,
    refuse_changed_base,
)
from zerotools.ops.weights.lora_merge import on_base
from zerotools.ops.weights.select_and_rename import MASTERS, weights_from

_ALIGNMENT = 16


class Block(NamedTuple):
    """Elements [begin, end) of a flattened tensor. `box` is the same elements as a box. It is None
    if the tensor and the one compared with it are both stored as flat ranges.
    """

    begin: int
    end: int
    box: Box | None


class LocatedTensor:
    """A tensor with the positions of all its elements in files."""

    def __init__(self, checkpoint: Checkpoint, key: Key) -> None:
        """Find the elements of the tensor `key`.

        Raises BadFile if elements are missing or stored twice, or a chunk lies outside its file.
        """
        tensor = checkpoint.tensors[key]
        self.dtype: DType = tensor.dtype
        self.shape = tensor.shape
        self.ranges = covering_ranges(tensor, checkpoint.files)
        self._begins = [each.begin for each in self.ranges or ()]
        self._chunks = [] if self.ranges is not None else distinct_chunks(key, tensor, checkpoint)
        self._index = BoxIndex([chunk.box for chunk in self._chunks])
        self.is_in_order = all(chunk.is_contiguous for chunk in self._chunks)

    def read(self, files: ThreadFiles, block: Block, raw: Array, buffer: Array) -> None:
        """Read the elements of `block` into the bytes `raw`, in row-major order; `buffer` is for
        intermediate data.
        """
        if self.ranges is not None:
            gather_flat(files, self._pieces(block), self.dtype.itemsize, raw.data)
            return
        assert block.box is not None, "only a tensor of ranges has blocks that are not boxes"
        pieces = [
            ChunkBox(self._chunks[position], common)
            for position, common in self._index.overlapping(block.box)
        ]
        gather_elements(files, pieces, block.box, self.dtype, self.dtype, raw, buffer, numpy_cast)

    def sizes(self) -> Array | None:
        """Return None, because stored elements are not sums (see `AdaptedTensor.sizes`)."""
        return None

    def _pieces(self, block: Block) -> Iterator[Range]:
        ranges, itemsize = self.ranges or (), self.dtype.itemsize
        for position in range(bisect_right(self._begins, block.begin) - 1, len(ranges)):
            begin, end, file, offset = ranges[position]
            if begin >= block.end:
                return
            first = max(begin, block.begin)
            yield Range(first, min(end, block.end), file, offset + (first - begin) * itemsize)


class TwoTensors:
    """Two tensors of one shape that are read together, block by block."""

    def __init__(self, ours: LocatedTensor, theirs: LocatedTensor) -> None:
        self.ours = ours
        self.theirs = theirs

    @property
    def itemsize(self) -> int:
        """The size in bytes of an element of the first tensor and one of the second together."""
        return self.ours.dtype.itemsize + self.theirs.dtype.itemsize

    def blocks(self, tile_bytes: int, wide_bytes: int) -> Iterator[Block]:
        """Yield blocks that together have all elements.

        The data of both tensors for one block fits in a buffer of `tile_bytes`, or of the larger of
        `tile_bytes` and `wide_bytes` if elements are not stored in row-major order.
        """
        is_in_order = self.ours.is_in_order and self.theirs.is_in_order
        room = tile_bytes if is_in_order else max(tile_bytes, wide_bytes)
        most = (room - 2 * _ALIGNMENT) // self.itemsize
        whole = Box.whole(self.ours.shape)
        if self.ours.ranges is not None and self.theirs.ranges is not None:
            for begin in range(0, whole.numel, most):
                yield Block(begin, min(whole.numel, begin + most), None)
            return
        begin = 0
        for box in contiguous_boxes(whole, most):
            yield Block(begin, begin + box.numel, box)
            begin += box.numel

    def read(
        self, ours: ThreadFiles, theirs: ThreadFiles, block: Block, scratch: Scratch
    ) -> tuple[Array, Array]:
        """Return the bytes of a block of each tensor, as views into `scratch` that are valid until
        its next use.
        """
        lengths = [
            (block.end - block.begin) * each.dtype.itemsize for each in (self.ours, self.theirs)
        ]
        second = -(-lengths[0] // _ALIGNMENT) * _ALIGNMENT
        raw = scratch.reserve(second + lengths[1])
        found = raw[: lengths[0]], raw[second:]
        self.ours.read(ours, block, found[0], scratch.read)
        self.theirs.read(theirs, block, found[1], scratch.read)
        return found


@dataclass(frozen=True, slots=True)
class Adapted:
    """The changes that adapters make to one weight. `halves` has the two low-rank matrices of each
    adapter.
    """

    changes: tuple[Change, ...]
    halves: Checkpoint


class AdaptedTensor(LocatedTensor):
    """A weight with an adapter added, as an fp32 tensor. Its blocks are boxes, because adapters are
    computed by rows and columns."""

    def __init__(self, checkpoint: Checkpoint, key: Key, adapted: Adapted) -> None:
        """Find the elements of the weight `key` and of the adapter's matrices.

        Raises BadFile if elements are missing or stored twice, or a chunk lies outside its file.
        """
        super().__init__(checkpoint, key)
        self._stored = LocatedTensor(checkpoint, key)
        read = block_reader(checkpoint, key)
        self._apply = merged_change(adapted.changes, adapted.halves, self.shape, read)
        self.dtype, self.ranges = FLOAT32, None
        self._last = local()

    def read(self, files: ThreadFiles, block: Block, raw: Array, buffer: Array) -> None:
        """Compute the sum of weight and adapter for `block`; see `LocatedTensor.read`."""
        box, dtype = block.box, self._stored.dtype
        assert box is not None, "a tensor without ranges is read by boxes"
        stored = np.empty((block.end - block.begin) * dtype.itemsize, np.uint8)
        self._stored.read(files, block, stored, buffer)
        values = as_type(stored.view(numpy_dtype(dtype)), FLOAT32).reshape(box.shape)
        total = self._apply(box, values)
        raw.view(np.float32).reshape(box.shape)[...] = total
        self._last.sizes = np.maximum(np.abs(values), np.abs(total - values)).ravel()

    def sizes(self) -> Array | None:
        """Return the larger magnitude of the two summands of each element, for the block that this
        thread read last. The rounding error of a sum depends on its summands, even if the sum
        itself is small."""
        sizes: Array = self._last.sizes
        return sizes


def with_adapter(
    base: Checkpoint, path: Path, table: FormatTable = FORMATS
) -> tuple[Checkpoint, Mapping[Key, Adapted]]:
    """Return the model `base` with the adapter in the directory `path`. A module that the adapter
    stores as a whole replaces that of the base model. LoRA matrices are added to the weights when
    these are read.

    Raises:
        BadRequest: `path` has no adapter, or its adapter belongs to another model.
        BadFile: files are damaged, or one of the two matrices of an adapter is missing.
        Unsupported: this kind of adapter cannot be added.
    """
    config = read_adapter_config(path)
    adapter = read_any(path, table=table)
    tensors = adapter_tensors(adapter.tensors, None, path)
    check_config(config, tensors, {e.saved: adapter.tensors[e.key] for e in tensors}, path)
    refuse_changed_base(config, path)
    held = weights_from(adapter, MASTERS)
    model = on_base(held, plain_weights(held, DEFAULT), tensors, config, base)
    changes = {key: Adapted(each, model.halves) for key, each in model.changes.items()}
    made = model.weights  # and the values of B for the run
    return replace(made, origin=base.origin, native=base.native, state=base.state), changes
