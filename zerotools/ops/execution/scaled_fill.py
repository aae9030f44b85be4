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
from zerotools.io.numeric.gather import box_reads, gather
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


def scaled_reads(scaled: ScaledSource, box: Box, room: int) -> Iterator[NeededRange]:
    """What `fill_scaled` reads, with a buffer of `room` bytes."""
    tensor = scaled.tensor
    for block in tensor.blocks_within(box, room, LARGEST_BLOCK):
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
    buffer: Array,
    cast: Cast,
) -> CastLosses:
    """Put the elements of `box` in row-major order into the bytes `raw`, cast to `target_dtype`.
    `buffer` is for what is read, and as many bytes are taken beside it.

    Raises:
        BadFile: scales that cannot be used, or values that cannot be quantised.
    """
    out = raw.view(numpy_dtype(target_dtype)).reshape(box.shape)
    losses, tensor = NO_LOSSES, scaled.tensor
    for block in tensor.blocks_within(box, buffer.nbytes, LARGEST_BLOCK):
        arrays: dict[str, Array] = {}
        for name, needed in tensor.scheme.needs(block).items():
            dtype = tensor.inputs[name].dtype
            held = np.empty(needed.numel * dtype.itemsize, np.uint8)
            pieces = _pieces(scaled.inputs[name], needed)
            gather(files, pieces, needed, dtype, dtype, held, buffer, numpy_cast)
            arrays[name] = held.view(numpy_dtype(dtype)).reshape(needed.shape)
        try:
            values = values_of(tensor.scheme, block, arrays, tensor.dtype)
        except BadFile as error:
            file = min(chunk.file for each in scaled.inputs.values() for chunk in each)
            raise BadFile(f"{file}: {key.name} {error}, in {block}; take another copy") from None
        inside = block.relative_to(box)
        index: tuple[Any, ...] = tuple(map(slice, inside.start, inside.stop))
        place = out[(*index, ...)]
        losses += _put(place, values, cast)
    return losses


def _put(place: Array, values: Array, cast: Cast) -> CastLosses:
    """As `cast_into`. What lies transposed is cast as it lies, which is twice as fast."""
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
