"""Gathers elements of a tensor from any positions in the files of a checkpoint.

The bytes of one write are gathered in one buffer:

- Ranges of a flattened tensor are read directly. Ranges that are adjacent in a file are read
  together.
- One call reads a block of a tensor, from its first to its last byte in the file, unless most of
  these bytes are not needed. In that case the contiguous runs of the block are read into one
  buffer, and put in order there.
- Blocks that are close to each other in a file are read together (`join_small_reads`).

Elements are selected by strides, and need not be aligned in the file.

`cast_ordered` copies a transposed array in blocks that fit into the cache of a processor. Sometimes
two or four elements are adjacent in one array and far apart in the other, for example if rows of
gate and up alternate. Such elements are moved together, as one wider element: a block of wide
elements is made in the cache, and then transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Chunk, ChunkBox
from zerotools.core.dtypes import DType
from zerotools.core.flat_ranges import Range
from zerotools.io.files.open_files import HeldFiles, NeededRange
from zerotools.io.numeric.dtype_casts import (
    NONE_LOST,
    Array,
    Cast,
    LostValues,
    cast_into,
    numpy_dtype,
)
from zerotools.io.numeric.join_small_reads import lattice_copies, near_pieces

# An additional read call takes about as long as copying this many bytes that are not needed.
WORTHWHILE_GAP_BYTES = 16 * 1024


class Scratch:
    """The reusable buffers of one worker: one for a tile, and one for the bytes that are read for
    the tile.

    The buffer for a tile has `tile_bytes` bytes, and the buffer for reads has `read_bytes` bytes.
    When a larger tile is needed, both are replaced by buffers of `wide_bytes` bytes.
    """

    def __init__(self, tile_bytes: int, read_bytes: int, wide_bytes: int = 0) -> None:
        self.tile = np.empty(tile_bytes, dtype=np.uint8)
        self.read = np.empty(read_bytes, dtype=np.uint8)
        self._wide_bytes = wide_bytes

    @property
    def extra_bytes(self) -> int:
        """The number of bytes of memory that the worker may take in addition to its present
        buffers."""
        return max(self.read.nbytes, self._wide_bytes)

    def reserve(self, nbytes: int) -> Array:
        """Return a buffer of `nbytes` bytes for a tile, with undefined values."""
        if nbytes > self.tile.nbytes:
            self.tile = np.empty(self._wide_bytes, dtype=np.uint8)
            self.read = np.empty(self._wide_bytes, dtype=np.uint8)
        return self.tile[:nbytes]


def gather_elements(
    files: HeldFiles,
    pieces: Sequence[ChunkBox],
    box: Box,
    source_dtype: DType,
    target_dtype: DType,
    raw: Array,
    buffer: Array,
    cast: Cast,
) -> LostValues:
    """Write the elements of `box`, in row-major order, into the bytes `raw`. Return the number of
    values that the cast lost.

    `pieces` are the parts of chunks to read: together they cover the box, and each lies inside it.
    `buffer` (bytes) is used for reading. If the dtypes are equal, there is no cast, and NaNs and
    infinities are not counted.
    """
    out = raw.view(numpy_dtype(target_dtype)).reshape(box.shape)
    losses = NONE_LOST
    together, alone = near_pieces(pieces, source_dtype, WORTHWHILE_GAP_BYTES, buffer.nbytes)
    for near in together:
        files.read_into(near.file, near.begin, buffer[: near.end - near.begin].data)
        for part, whole in lattice_copies(near, source_dtype, buffer, out, box):
            losses += cast_ordered(part, whole, cast)
    for piece in alone:
        if piece.box == box and source_dtype == target_dtype and _is_dense(piece, box):
            files.read_into(piece.chunk.file, _first_byte(piece, source_dtype), raw.data)
            continue
        for block, whole in _read_blocks(files, piece, source_dtype, buffer):
            losses += cast_ordered(_view(out, block.relative_to(box)), whole, cast)
    return losses


def box_reads(
    pieces: Sequence[ChunkBox],
    box: Box,
    source_dtype: DType,
    target_dtype: DType,
    room: int,
) -> Iterator[NeededRange]:
    """Yield the byte ranges that `gather_elements` will read if its buffer has `room` bytes."""
    together, alone = near_pieces(pieces, source_dtype, WORTHWHILE_GAP_BYTES, room)
    for near in together:
        yield NeededRange(near.file, near.begin, near.end)
    for piece in alone:
        if piece.box == box and source_dtype == target_dtype and _is_dense(piece, box):
            begin = _first_byte(piece, source_dtype)
            yield NeededRange(piece.chunk.file, begin, begin + box.numel * source_dtype.itemsize)
            continue
        for each in _planned_blocks(piece, source_dtype, room):
            for number in range(each.reads):
                begin = each.begin + number * each.step
                yield NeededRange(piece.chunk.file, begin, begin + each.length)


def flat_reads(pieces: Iterable[Range], itemsize: int) -> Iterator[NeededRange]:
    """Yield the byte ranges that `gather_flat` and `cast_flat` will read."""
    for file, offset, length in _stretches(pieces, itemsize):
        yield NeededRange(file, offset, offset + length)


def gather_flat(files: HeldFiles, pieces: Iterable[Range], itemsize: int, raw: memoryview) -> None:
    """Read ranges of a flattened tensor one after another into the bytes `raw`, which they fill.
    There is no cast.
    """
    at = 0
    for file, offset, length in _stretches(pieces, itemsize):
        files.read_into(file, offset, raw[at : at + length])
        at += length


def cast_flat(
    files: HeldFiles,
    pieces: Iterable[Range],
    source_dtype: DType,
    target_dtype: DType,
    raw: Array,
    buffer: Array,
    cast: Cast,
) -> LostValues:
    """Read ranges as `gather_flat` does, and cast their elements. Return the number of values that
    the cast lost.
    """
    out = raw.view(numpy_dtype(target_dtype))
    element, itemsize = numpy_dtype(source_dtype), source_dtype.itemsize
    most = buffer.nbytes // itemsize
    losses, at = NONE_LOST, 0
    for file, offset, length in _stretches(pieces, itemsize):
        for done in range(0, length // itemsize, most):
            count = min(most, length // itemsize - done)
            values = buffer[: count * itemsize]
            files.read_into(file, offset + done * itemsize, values.data)
            losses += cast_into(out[at : at + count], values.view(element), cast)
            at += count
    return losses


def _stretches(pieces: Iterable[Range], itemsize: int) -> Iterator[tuple[str, int, int]]:
    """Yield (file, byte offset, number of bytes) of the ranges. Ranges that are adjacent in a file
    are joined.
    """
    file, begin, stop = "", 0, 0
    for first, end, source, offset in pieces:
        if source != file or offset != stop:
            if stop > begin:
                yield file, begin, stop - begin
            file, begin = source, offset
        stop = offset + (end - first) * itemsize
    if stop > begin:
        yield file, begin, stop - begin


def _view(array: Array, box: Box) -> Array:
    # The ellipsis keeps a 0-d result an array that can be written to.
    index: tuple[Any, ...] = tuple(map(slice, box.start, box.stop))
    view: Array = array[(*index, ...)]
    return view


def _strides(chunk: Chunk) -> tuple[int, ...]:
    return chunk.strides if chunk.strides is not None else row_major_strides(chunk.box.shape)


def _first_byte(piece: ChunkBox, dtype: DType) -> int:
    inside = piece.box.relative_to(piece.chunk.box)
    index = sum(a * s for a, s in zip(inside.start, _strides(piece.chunk), strict=True))
    return piece.chunk.offset + index * dtype.itemsize


def _is_dense(piece: ChunkBox, tile: Box) -> bool:
    """Return whether the elements of the piece are contiguous in its file, and have the same order
    there as in the tile.
    """
    dense = row_major_strides(tile.shape)
    return all(
        n == 1 or a == b for n, a, b in zip(tile.shape, _strides(piece.chunk), dense, strict=True)
    )


class _PlannedBlock(NamedTuple):
    """A block of a tensor, and the reads that get its bytes.

    There are `reads` reads of `length` bytes, `step` bytes apart in the file; the first is at
    `begin`. After reading, the block has the `strides` in the buffer, in elements.
    """

    block: Box
    begin: int
    reads: int
    step: int
    length: int
    strides: tuple[int, ...]


def _planned_blocks(piece: ChunkBox, dtype: DType, room: int) -> Iterator[_PlannedBlock]:
    strides, itemsize = _strides(piece.chunk), dtype.itemsize
    for block, axis in _readable_blocks(piece.box, strides, itemsize, room):
        begin = _first_byte(ChunkBox(piece.chunk, block), dtype)
        reads, length, step, packed = 1, _span(block.shape, strides), 0, strides
        if axis is not None:  # runs that are far apart in the file are adjacent in the buffer
            reads, step = block.shape[axis], strides[axis]
            length -= (reads - 1) * step
            packed = (*strides[:axis], length, *strides[axis + 1 :])
        yield _PlannedBlock(block, begin, reads, step * itemsize, length * itemsize, packed)


def _read_blocks(
    files: HeldFiles, piece: ChunkBox, dtype: DType, buffer: Array
) -> Iterator[tuple[Box, Array]]:
    """Read the piece block by block, and yield each block with its values. The values are views of
    `buffer`.
    """
    for block, begin, reads, step, length, packed in _planned_blocks(piece, dtype, buffer.nbytes):
        for number in range(reads):
            run = buffer[number * length : (number + 1) * length].data
            files.read_into(piece.chunk.file, begin + number * step, run)
        yield (
            block,
            np.ndarray(
                block.shape,
                numpy_dtype(dtype),
                buffer=buffer.data,
                strides=tuple(s * dtype.itemsize for s in packed),
            ),
        )


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements in a file from the first to the last element of a block, both
    included.
    """
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


def _readable_blocks(
    box: Box, strides: tuple[int, ...], itemsize: int, most: int
) -> Iterator[tuple[Box, int | None]]:
    """Cut a box into blocks that fit in `most` bytes. Yield each block with the axis along which it
    is read, or None.

    If the axis is None, one call reads the block. If the axis is a number, each index along this
    axis needs a separate call.
    """
    if box.is_empty:
        return
    span = _span(box.shape, strides)
    is_sparse = _mostly_gaps(box, strides, itemsize, span)
    if span * itemsize <= most and not is_sparse:
        yield box, None
        return
    axis = _outermost(box, strides)
    inner = span - (box.shape[axis] - 1) * strides[axis]
    runs = None
    if is_sparse:
        row = Box(box.start, (*box.shape[:axis], 1, *box.shape[axis + 1 :]))
        is_run = inner * itemsize <= most and not _mostly_gaps(row, strides, itemsize, inner)
        step, runs = (most // (inner * itemsize), axis) if is_run else (1, None)
    elif strides[axis]:
        step = (most // itemsize - inner) // strides[axis] + 1
    else:
        step = box.shape[axis]
    step = max(1, step) if runs is not None else min(max(1, step), box.shape[axis] - 1)
    for first in range(0, box.shape[axis], step):
        count = min(step, box.shape[axis] - first)
        start = (*box.start[:axis], box.start[axis] + first, *box.start[axis + 1 :])
        shape = (*box.shape[:axis], count, *box.shape[axis + 1 :])
        if runs is None:
            yield from _readable_blocks(Box(start, shape), strides, itemsize, most)
        else:
            yield Box(start, shape), runs


def _outermost(box: Box, strides: tuple[int, ...]) -> int:
    """Return the dimension with the largest distance between neighbours in the file."""
    return max((d for d in range(len(box.shape)) if box.shape[d] > 1), key=lambda d: strides[d])


def _mostly_gaps(box: Box, strides: tuple[int, ...], itemsize: int, span: int) -> bool:
    """Return whether separate reads of the runs of a box are faster than one read that includes the
    gaps. Runs are counted along the dimension with the largest stride."""
    if len([n for n in box.shape if n > 1]) == 0 or span <= 2 * prod(box.shape):
        return False
    axis = _outermost(box, strides)
    inner = span - (box.shape[axis] - 1) * strides[axis]
    return (strides[axis] - inner) * itemsize > WORTHWHILE_GAP_BYTES


_BLOCK = 128
_SMALL = 64 * 1024
_WORDS = {4: np.uint32, 8: np.uint64}
_PLAIN = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


def cast_ordered(out: Array, values: Array, cast: Cast) -> LostValues:
    """Write `values` into `out` as `cast_into` does. This is fast for arrays with any strides."""
    if out.dtype == values.dtype and out.itemsize in _PLAIN:
        plain: Any = _PLAIN[
            out.itemsize
        ]  # numpy copies bfloat16 and other dtypes of ml_dtypes one by one
        out, values = out.view(plain), values.view(plain)
    wide = [dim for dim in range(out.ndim) if out.shape[dim] > 1]
    if values.nbytes <= _SMALL or len(wide) < 2:
        return cast_into(out, values, cast)
    ours, theirs = (
        sorted(wide, key=lambda dim: abs(strides[dim])) for strides in (out.strides, values.strides)
    )
    if ours[0] == theirs[0]:
        return cast_into(out, values, cast)
    copied = _copy_of(out, values, ours[0], theirs[0])
    losses = NONE_LOST
    for index in _blocks(out.shape, (ours, theirs)):
        if copied is None:
            losses += cast_into(out[index], values[index], cast)
        else:
            _copy_words(out[index], values[index], *copied)
    return losses


def _copy_of(out: Array, values: Array, ours: int, theirs: int) -> tuple[int, bool] | None:
    """Return (dimension, is_out) if the elements along a dimension can be copied together as one
    word; else None. `ours` and `theirs` are the dimensions with the smallest stride in `out` and in
    `values`.

    `is_out` is True if these elements are adjacent in `out`, and False if they are adjacent in
    `values`.
    """
    if out.dtype == values.dtype:
        for array, dim, is_out in ((out, ours, True), (values, theirs, False)):
            nbytes = array.shape[dim] * array.itemsize
            if nbytes in _WORDS and array.strides[dim] == array.itemsize:
                return dim, is_out
    return None


def _blocks(shape: Sequence[int], orders: Sequence[Sequence[int]]) -> Iterator[tuple[slice, ...]]:
    """Cut an array of `shape` into blocks, and yield each as a tuple of slices. Each of `orders`
    lists the dimensions of an array from the smallest stride to the largest. A block has runs of
    adjacent elements in the arrays of all orders.
    """
    sizes = [1] * len(shape)
    for order in orders:
        left = _BLOCK
        for dim in order:
            taken = min(shape[dim], max(1, left))
            sizes[dim] = max(sizes[dim], taken)
            left //= taken
    for start in np.ndindex(*(-(-n // size) for n, size in zip(shape, sizes, strict=True))):
        yield tuple(
            slice(number * size, (number + 1) * size)
            for number, size in zip(start, sizes, strict=True)
        )


def _copy_words(out: Array, values: Array, dim: int, is_out: bool) -> None:
    """Copy a block of `values` to `out`. The elements along `dim` are adjacent in `out` if
    `is_out`, else in `values`, and are moved as one word.
    """
    narrow, words = (values, out) if is_out else (out, values)
    order = sorted(range(out.ndim), key=lambda each: (each == dim, -abs(narrow.strides[each])))
    block = np.empty([out.shape[each] for each in order], out.dtype)
    same = block.transpose(np.argsort(order))
    word = _WORDS[out.shape[dim] * out.itemsize]
    in_block = np.moveaxis(same, dim, -1).view(word)
    in_words = np.moveaxis(words, dim, -1).view(word)
    if is_out:
        _copy_each(same, values, dim)
        np.copyto(in_words, in_block)
    else:
        np.copyto(in_block, in_words)
        _copy_each(out, same, dim)


def _copy_each(into: Array, values: Array, dim: int) -> None:
    for number in range(values.shape[dim]):
        index: tuple[Any, ...] = (*(slice(None) for _ in range(dim)), number)
        np.copyto(into[index], values[index])
