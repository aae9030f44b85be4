"""Read the elements of a tile from the source, and cast them to the dtype of the target.

The elements of most tiles are copied and cast. The elements of a quantised weight are computed from
its payload and scales, block by block (`fill_scaled`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from zerotools.core.boxes import Box, BoxIndex
from zerotools.core.checkpoint import Chunk, ChunkBox, Key
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import HeldFiles, NeededRange, OpenFiles
from zerotools.io.numeric.dtype_casts import (
    NONE_LOST,
    Array,
    Cast,
    LostValues,
    cast_into,
    count_lost_values,
    numpy_cast,
    numpy_dtype,
)
from zerotools.io.numeric.gather_elements import (
    Scratch,
    box_reads,
    cast_flat,
    flat_reads,
    gather_elements,
    gather_flat,
)
from zerotools.io.numeric.quantised_values import values_of
from zerotools.ops.execution.plan_copies import ScaledSource
from zerotools.ops.execution.tiles import BoxPart, RangePart, Tile

Losses = list[tuple[Key, LostValues]]


def fill_tile(
    files: OpenFiles,
    tile: Tile,
    scratch: Scratch,
    *,
    counting: bool = False,
    cast: Cast = numpy_cast,
    out: Array | None = None,
) -> tuple[memoryview, Losses]:
    """Read the elements of `tile` and cast them. Return their bytes, and the losses of each tensor.

    Losses are values that the cast made infinite. With `counting`, other NaN and infinite values
    are counted too. The returned view is that of the bytes `out`. Without `out` it is memory of
    `scratch`, and is valid until `scratch` is used again.
    """
    raw = scratch.reserve(tile.nbytes) if out is None else out
    is_cast = tile.source_dtype != tile.target_dtype
    with files.holding() as own_files:
        held = own_files.with_bytes(lambda: _reads(tile, scratch))
        if is_cast or isinstance(tile.parts[0], BoxPart):
            found = [
                (part.key, _fill(held, part, tile, own, scratch, cast))
                for part, own in _shares(tile, raw)
            ]
        else:
            flat = (part for part in tile.parts if isinstance(part, RangePart))
            pieces = (piece for part in flat for piece in part.pieces)
            gather_flat(held, pieces, tile.source_dtype.itemsize, raw.data)
            found = []
    if counting and not is_cast:
        found = _not_finite(tile, raw)
    return raw.data, [(key, losses) for key, losses in found if losses != NONE_LOST]


def of_weights(tile: Tile, losses: Losses) -> Losses:
    """Return `losses` without the NaN and infinite values of tensors that are not weights: an
    attention mask, for example, may contain infinities."""
    if tile.role == "param":
        return losses
    return [(key, replace(lost, nans=0, infinities=0)) for key, lost in losses]


def moved_ranges(tile: Tile) -> Iterator[NeededRange]:
    """Yield the ranges of source files that contain the bytes of `tile`, in order. Yield nothing if
    the elements are cast or selected from blocks, because then no range is copied unchanged."""
    if tile.source_dtype == tile.target_dtype:
        flat = [part for part in tile.parts if isinstance(part, RangePart)]
        pieces = (piece for part in flat for piece in part.pieces)
        yield from flat_reads(pieces, tile.source_dtype.itemsize)


def _reads(tile: Tile, scratch: Scratch) -> Iterator[NeededRange]:
    """Yield the ranges of files to read for a tile with the buffers of `scratch`."""
    room = scratch.read.nbytes
    for part in tile.parts:
        if isinstance(part, RangePart):
            yield from flat_reads(part.pieces, tile.source_dtype.itemsize)
        elif part.scaled is not None:
            yield from scaled_reads(part.scaled, part.box, room, scratch.extra_bytes)
        else:
            types = (tile.source_dtype, tile.target_dtype)
            yield from box_reads(part.pieces, part.box, *types, room)


def _shares(tile: Tile, raw: Array) -> Iterator[tuple[BoxPart | RangePart, Array]]:
    """Yield each part of the tile with its section of the buffer `raw`."""
    at = 0
    for part in tile.parts:
        numel = part.numel if isinstance(part, RangePart) else part.box.numel
        end = at + numel * tile.target_dtype.itemsize
        yield part, raw[at:end]
        at = end


def _fill(
    held: HeldFiles, part: BoxPart | RangePart, tile: Tile, raw: Array, scratch: Scratch, cast: Cast
) -> LostValues:
    types, buffer = (tile.source_dtype, tile.target_dtype), scratch.read
    if isinstance(part, RangePart):
        return cast_flat(held, part.pieces, *types, raw, buffer, cast)
    if part.scaled is not None:
        return fill_scaled(held, part.key, part.scaled, part.box, types[1], raw, scratch, cast)
    return gather_elements(held, part.pieces, part.box, *types, raw, buffer, cast)


def _not_finite(tile: Tile, raw: Array) -> Losses:
    """Return the number of NaN and infinite values in each part of the tile. The whole buffer is
    checked first, because most tiles have no such values."""
    if _losses(raw, tile.target_dtype) == NONE_LOST:
        return []
    return [(part.key, _losses(own, tile.target_dtype)) for part, own in _shares(tile, raw)]


def _losses(raw: Array, dtype: DType) -> LostValues:
    values = raw.view(numpy_dtype(dtype))
    return count_lost_values(values, values)


LARGEST_BLOCK = 2**17
"""The number of elements that are computed at once, so that their values stay in the cache of a
processor.
"""
_MOST_INPUTS = 2**23


def scaled_reads(
    scaled: ScaledSource, box: Box, read_bytes: int, extra_bytes: int
) -> Iterator[NeededRange]:
    """Yield the file ranges that `fill_scaled` reads for `box`, with a read buffer of `read_bytes`
    bytes and a buffer of `extra_bytes` bytes for inputs and computed values."""
    tensor = scaled.tensor
    for block in tensor.blocks_to_read(box, _buffer_shares(extra_bytes)[0]):
        for name, needed in tensor.scheme.needs(block).items():
            dtype = tensor.inputs[name].dtype
            pieces = _pieces(scaled.inputs[name], needed)
            yield from box_reads(pieces, needed, dtype, dtype, read_bytes)


def fill_scaled(
    files: HeldFiles,
    key: Key,
    scaled: ScaledSource,
    box: Box,
    target_dtype: DType,
    raw: Array,
    scratch: Scratch,
    cast: Cast,
) -> LostValues:
    """Compute the elements of `box`, cast them to `target_dtype`, and put them in row-major order
    into the bytes `raw`. Inputs are read in large blocks, and values are computed in smaller ones.

    Raises:
        BadFile: scales cannot be used, or values cannot be quantised.
    """
    out = raw.view(numpy_dtype(target_dtype)).reshape(box.shape)
    losses, tensor = NONE_LOST, scaled.tensor
    most_read, most_work = _buffer_shares(scratch.extra_bytes)
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
                    f"{file}: {key.name} {error}, in {block}: the file is damaged; copy or "
                    "download it again"
                ) from None
            losses += _put(out[(*_inside(block, box), ...)], values, cast)
    return losses


def _buffer_shares(extra_bytes: int) -> tuple[int, int]:
    """Divide `extra_bytes` of memory into the bytes for inputs and those for computed values."""
    half = extra_bytes // 2
    return min(half, _MOST_INPUTS), half


def _gathered(files: HeldFiles, scaled: ScaledSource, name: str, box: Box, buffer: Array) -> Array:
    """Read the block `box` of the input `name` into an array."""
    dtype = scaled.tensor.inputs[name].dtype
    held = np.empty(box.numel * dtype.itemsize, np.uint8)
    gather_elements(
        files, _pieces(scaled.inputs[name], box), box, dtype, dtype, held, buffer, numpy_cast
    )
    return held.view(numpy_dtype(dtype)).reshape(box.shape)


def _inside(box: Box, outer: Box) -> tuple[Any, ...]:
    """Return the slices that select `box` in an array of the block `outer`."""
    inner = box.relative_to(outer)
    return tuple(map(slice, inner.start, inner.stop))


def _put(place: Array, values: Array, cast: Cast) -> LostValues:
    """Cast `values` into `place`, as `cast_into` does. Transposed values are cast in the order of
    the source, which is twice as fast."""
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
    return [ChunkBox(chunks[position], common) for position, common in index.overlapping(box)]
