"""The elements of a block of a scaled cast, made of its inputs some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from zerotools.core.boxes import Box, BoxIndex
from zerotools.core.checkpoint import Chunk, ChunkBox, Key
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import HeldFiles, NeededRange
from zerotools.io.numeric.gather import Scratch, box_reads, gather
from zerotools.io.numeric.numpy_dtypes import (
    NO_LOSSES,
    Array,
    Cast,
    CastLosses,
    cast_into,
    numpy_cast,
    numpy_dtype,
)
from zerotools.io.numeric.scaled_values import values_of
from zerotools.ops.execution.plan import ScaledSource

LARGEST_BLOCK = 2**17
"""Elements that are computed at once: their values stay in the cache of a processor."""
_MOST_INPUTS = 2**23


def scaled_reads(scaled: ScaledSource, box: Box, room: int, beside: int) -> Iterator[NeededRange]:
    """Yield the ranges that `fill_scaled` reads, with a buffer of `room` bytes and `beside` for the
    rest."""
    tensor = scaled.tensor
    for block in tensor.blocks_to_read(box, _shares(beside)[0]):
        for name, needed in tensor.scheme.needs(block).items():
            dtype = tensor.inputs[name].dtype
            pieces = _pieces(scaled.inputs[name], needed)
            yield from box_reads(pieces, needed, dtype, dtype, room)


def fill_scaled(
    files: HeldFiles,
    key: Key,
    scaled: ScaledSource,
    box: Box,
    target_dtype: DType,
    raw: Array,
    scratch: Scratch,
    cast: Cast,
) -> CastLosses:
    """Put the elements of `box` in row-major order into the bytes `raw`, cast to `target_dtype`.
    Inputs are read in blocks that are as large as they may be, and computed with in smaller ones.

    Raises:
        BadFile: scales that cannot be used, or values that cannot be quantised.
    """
    out = raw.view(numpy_dtype(target_dtype)).reshape(box.shape)
    losses, tensor = NO_LOSSES, scaled.tensor
    most_read, most_work = _shares(scratch.beside)
    for read in tensor.blocks_to_read(box, most_read):
        whole = tensor.scheme.needs(read)
        arrays = {
            name: _gathered(files, scaled, name, part, scratch.read) for name, part in whole.items()
        }
        for block in tensor.blocks_within(read, most_work, LARGEST_BLOCK):
            needed = tensor.scheme.needs(block)
            parts = {
                name: arrays[name][_inside(part, whole[name])] for name, part in needed.items()
            }
            try:
                values = values_of(tensor.scheme, block, parts, tensor.dtype)
            except BadFile as error:
                file = min(chunk.file for each in scaled.inputs.values() for chunk in each)
                raise BadFile(
                    f"{file}: {key.name} {error}, in {block}; take another copy"
                ) from None
            losses += _put(out[(*_inside(block, box), ...)], values, cast)
    return losses


def _shares(beside: int) -> tuple[int, int]:
    """Return the shares of the allowed bytes for inputs, and for computed values."""
    half = beside // 2
    return min(half, _MOST_INPUTS), half


def _gathered(files: HeldFiles, scaled: ScaledSource, name: str, box: Box, buffer: Array) -> Array:
    """Return the block `box` of an input."""
    dtype = scaled.tensor.inputs[name].dtype
    held = np.empty(box.numel * dtype.itemsize, np.uint8)
    gather(files, _pieces(scaled.inputs[name], box), box, dtype, dtype, held, buffer, numpy_cast)
    return held.view(numpy_dtype(dtype)).reshape(box.shape)


def _inside(box: Box, outer: Box) -> tuple[Any, ...]:
    """Return the position of `box` in an array of `outer`."""
    inner = box.relative_to(outer)
    return tuple(map(slice, inner.start, inner.stop))


def _put(place: Array, values: Array, cast: Cast) -> CastLosses:
    """Do the same as `cast_into`. Transposed values are cast in the order of the source, which is
    twice as fast."""
    if values.ndim < 2 or values.flags.c_contiguous:
        return cast_into(place, values, cast)
    rows = values.swapaxes(-1, -2)
    moved = np.empty(rows.shape, place.dtype)
    losses = cast_into(moved, rows, cast)
    np.copyto(place, moved.swapaxes(-1, -2))
    return losses


def _pieces(chunks: tuple[Chunk, ...], box: Box) -> list[ChunkBox]:
    if len(chunks) == 1:
        return [ChunkBox(chunks[0], box)]
    index = BoxIndex([chunk.box for chunk in chunks])
    return [ChunkBox(chunks[position], common) for position, common in index.meeting(box)]
