"""The bytes of one tile, made from its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import DType
from zerotools.io.files.open_files import HeldFiles, NeededRange, OpenFiles
from zerotools.io.numeric.gather import (
    Scratch,
    box_reads,
    cast_flat,
    flat_reads,
    gather,
    gather_flat,
)
from zerotools.io.numeric.numpy_dtypes import (
    NO_LOSSES,
    Array,
    Cast,
    CastLosses,
    losses_of,
    numpy_cast,
    numpy_dtype,
)
from zerotools.ops.execution.scaled_fill import fill_scaled, scaled_reads
from zerotools.ops.execution.tiles import BoxPart, RangePart, Tile

Losses = list[tuple[Key, CastLosses]]


def fill(
    files: OpenFiles,
    tile: Tile,
    scratch: Scratch,
    *,
    counting: bool = False,
    cast: Cast = numpy_cast,
) -> tuple[memoryview, Losses]:
    """Return the bytes of `tile`, and the losses of each tensor. Values that are not finite are
    counted for casts, and with `counting` always.

    The view is into `scratch` and valid until its next use.
    """
    raw = scratch.hold(tile.nbytes)
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
    return raw.data, [(key, losses) for key, losses in found if losses != NO_LOSSES]


def of_weights(tile: Tile, losses: Losses) -> Losses:
    """Return the losses, with non-finite values counted only for weights: an attention mask may
    rightly be infinite."""
    if tile.role == "param":
        return losses
    return [(key, replace(lost, nans=0, infinities=0)) for key, lost in losses]


def _reads(tile: Tile, scratch: Scratch) -> Iterator[NeededRange]:
    """Yield the ranges that a tile reads with the buffers of `scratch`."""
    room = scratch.read.nbytes
    for part in tile.parts:
        if isinstance(part, RangePart):
            yield from flat_reads(part.pieces, tile.source_dtype.itemsize)
        elif part.scaled is not None:
            yield from scaled_reads(part.scaled, part.box, room, scratch.beside)
        else:
            types = (tile.source_dtype, tile.target_dtype)
            yield from box_reads(part.pieces, part.box, *types, room)


def _shares(tile: Tile, raw: Array) -> Iterator[tuple[BoxPart | RangePart, Array]]:
    """Yield each part with its bytes of the tile."""
    at = 0
    for part in tile.parts:
        numel = part.numel if isinstance(part, RangePart) else part.box.numel
        end = at + numel * tile.target_dtype.itemsize
        yield part, raw[at:end]
        at = end


def _fill(
    held: HeldFiles, part: BoxPart | RangePart, tile: Tile, raw: Array, scratch: Scratch, cast: Cast
) -> CastLosses:
    types, buffer = (tile.source_dtype, tile.target_dtype), scratch.read
    if isinstance(part, RangePart):
        return cast_flat(held, part.pieces, *types, raw, buffer, cast)
    if part.scaled is not None:
        return fill_scaled(held, part.key, part.scaled, part.box, types[1], raw, scratch, cast)
    return gather(held, part.pieces, part.box, *types, raw, buffer, cast)


def _not_finite(tile: Tile, raw: Array) -> Losses:
    """Return the values of each part that are not finite: usually none, as one check of the full
    buffer shows."""
    if _losses(raw, tile.target_dtype) == NO_LOSSES:
        return []
    return [(part.key, _losses(own, tile.target_dtype)) for part, own in _shares(tile, raw)]


def _losses(raw: Array, dtype: DType) -> CastLosses:
    values = raw.view(numpy_dtype(dtype))
    return losses_of(values, values)
