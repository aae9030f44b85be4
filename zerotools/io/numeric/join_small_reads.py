"""Copies many small parts of a tensor at once, if neighbouring parts are equally far apart, both in
the file and in the tensor.

If rows of rope pairs, groups of a fused QKV, or rows of gate and up alternate, every few elements
are a separate part. Parts with bytes near each other are read at once (`near_pieces`). Parts of the
same shape that follow one another along a dimension, a constant number of bytes apart, form one
array with one more dimension (`lattice_copies`). Example: pairs of rows that are two halves of a
head:

    rows of the tensor     0 1 | 2 3 | 4 5       three parts of two rows, 3 rows apart in the file
    rows in the file       0 3 | 1 4 | 2 5       an array of 3 x 2, with strides 1 and 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import ChunkBox
from zerotools.core.dtypes import DType
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype


class PlacedPiece(NamedTuple):
    """A block of a tensor with its position in a file: its elements begin at byte `begin` and end
    before byte `end`.

    `strides` are the distances between neighbours, in bytes.
    """

    box: Box
    file: str
    begin: int
    end: int
    strides: tuple[int, ...]


class NearPieces(NamedTuple):
    """Pieces of a tensor that are read together, by one read of the bytes [begin, end) of
    `file`.
    """

    file: str
    begin: int
    end: int
    pieces: Sequence[PlacedPiece]


def near_pieces(
    pieces: Sequence[ChunkBox], dtype: DType, gap: int, room: int
) -> tuple[list[NearPieces], list[ChunkBox]]:
    """Divide the pieces into groups, so that each group is read at once. Return the groups, and the
    pieces that are in no group.

    A group has at least two pieces, with gaps of at most `gap` bytes between them. The bytes of a
    group fit in a buffer of `room` bytes, and at least half of them are needed.
    """
    if len(pieces) < 2:
        return [], list(pieces)
    placed = sorted(
        ((_placed(piece, dtype), number) for number, piece in enumerate(pieces)),
        key=lambda each: (each[0].file, each[0].begin),
    )
    found: list[NearPieces] = []
    alone: list[int] = []
    at = 0
    while at < len(placed):
        first = placed[at][0]
        stop, end, wanted = at, first.begin, 0
        while stop < len(placed):
            piece = placed[stop][0]
            reach = max(end, piece.end)
            if piece.file != first.file or piece.begin > end + gap or reach - first.begin > room:
                break
            end, wanted, stop = reach, wanted + piece.box.numel * dtype.itemsize, stop + 1
        if stop - at < 2 or end - first.begin > 2 * wanted:
            stop = max(stop, at + 1)
            alone += (number for _, number in placed[at:stop])
        else:
            own = [piece for piece, _ in placed[at:stop]]
            found.append(NearPieces(first.file, first.begin, end, own))
        at = stop
    return found, [pieces[number] for number in sorted(alone)]


def _placed(piece: ChunkBox, dtype: DType) -> PlacedPiece:
    chunk, itemsize = piece.chunk, dtype.itemsize
    strides = chunk.strides if chunk.strides is not None else row_major_strides(chunk.box.shape)
    begin, last = chunk.offset, 0
    for dim, stride in enumerate(strides):
        begin += (piece.box.start[dim] - chunk.box.start[dim]) * stride * itemsize
        last += (piece.box.shape[dim] - 1) * stride
    steps = tuple(stride * itemsize for stride in strides)
    return PlacedPiece(piece.box, chunk.file, begin, begin + (last + 1) * itemsize, steps)


def lattice_copies(
    near: NearPieces, dtype: DType, buffer: Array, out: Array, box: Box
) -> Iterator[tuple[Array, Array]]:
    """Yield (part of `out`, elements to copy into it) for each lattice in the pieces `near`. A
    lattice is a group of pieces of equal shape that are equally far apart.

    `out` has the elements of `box`. The elements to copy are views of `buffer`, which contains the
    bytes of `near`.
    """
    element = numpy_dtype(dtype)
    for run, dim in _runs(sorted(near.pieces, key=lambda piece: piece.box.start)):
        first, count = run[0], len(run)
        step = run[1].begin - first.begin if count > 1 else 0
        shape, places = first.box.shape, first.box.relative_to(box)
        values = np.ndarray(
            (*shape[:dim], count, *shape[dim:]),
            element,
            buffer=buffer.data,
            offset=first.begin - near.begin,
            strides=(*first.strides[:dim], step, *first.strides[dim:]),
        )
        index: tuple[Any, ...] = tuple(
            slice(a, a + n * (count if d == dim else 1))
            for d, (a, n) in enumerate(zip(places.start, shape, strict=True))
        )
        part = out[(*index, ...)]
        strides = part.strides
        wide = shape[dim] * strides[dim] if shape else part.itemsize
        yield (
            np.lib.stride_tricks.as_strided(
                part, values.shape, (*strides[:dim], wide, *strides[dim:])
            ),
            values,
        )


def _runs(pieces: Sequence[PlacedPiece]) -> Iterator[tuple[Sequence[PlacedPiece], int]]:
    """Group pieces that form one lattice, and yield each group with the dimension along which its
    pieces follow one another.
    """
    at = 0
    while at < len(pieces):
        first, end = pieces[at], at + 1
        dim = _next_along(first, pieces[end]) if end < len(pieces) else None
        if dim is not None:
            step = pieces[end].begin - first.begin
            while (
                end < len(pieces)
                and pieces[end].begin - pieces[end - 1].begin == step
                and _next_along(pieces[end - 1], pieces[end]) == dim
            ):
                end += 1
        yield pieces[at:end], dim or 0
        at = end


def _next_along(one: PlacedPiece, other: PlacedPiece) -> int | None:
    """Return the dimension along which `other` follows `one` without a gap. Return None if there is
    no such dimension, or if `one` and `other` have different shapes or strides.
    """
    if one.box.shape != other.box.shape or one.strides != other.strides:
        return None
    if other.begin < one.begin:
        return None
    found = None
    for dim, (a, b) in enumerate(zip(one.box.start, other.box.start, strict=True)):
        if a != b:
            if found is not None or b - a != one.box.shape[dim]:
                return None
            found = dim
    return found
