"""Tiles, the unit of work: copies cut to the size of a buffer, or joined until they fill one.

A copy of a box is cut into boxes that are contiguous in their target file. A copy of a range may be
cut anywhere. A checkpoint of many ranks has many small ranges, so those that are consecutive in a
file share tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from zerotools.core.boxes import Box, BoxIndex, contiguous_boxes
from zerotools.core.checkpoint import ChunkBox, Key
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.core.flat_ranges import Range
from zerotools.core.scaled_cast import ScaledCast
from zerotools.ops.execution.plan_copies import Copy, RangeCopy, ScaledSource

WIDEST_ITEM_BYTES = 16
MAX_PIECES = 128
"""The largest number of pieces in an unfinished tile. Each output file has one unfinished tile, and
a run may have thousands of files."""
_AHEAD = 64
"""The number of tiles from which `alternate_files` takes the next one."""


class BoxPart(NamedTuple):
    """A block of a tensor that is contiguous in its target file, with the pieces of the source that
    cover it, or with the computation that produces it."""

    key: Key
    box: Box
    pieces: Sequence[ChunkBox]
    scaled: ScaledSource | None = None


class RangePart(NamedTuple):
    """`numel` elements of a flattened tensor. `pieces` are consecutive source ranges that cover
    these elements."""

    key: Key
    numel: int
    pieces: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Tile:
    """`nbytes` bytes of `file`, from byte `offset`. They are one `BoxPart`, or several consecutive
    `RangePart`s of the same role."""

    file: str
    offset: int
    nbytes: int
    source_dtype: DType
    target_dtype: DType
    parts: tuple[BoxPart] | Sequence[RangePart]

    @property
    def role(self) -> str:
        return self.parts[0].key.role

    def key_of(self, at: int) -> Key:
        """Return the key of the tensor that byte `at` of the tile belongs to."""
        for part in self.parts:
            if isinstance(part, RangePart):
                at -= part.numel * self.target_dtype.itemsize
                if at >= 0:
                    continue
            return part.key
        raise IndexError(f"the tile has {self.nbytes} bytes")


def tiles_of(
    copies: Iterable[Copy | RangeCopy],
    tile_bytes: int,
    needed: Mapping[str, int] | None = None,
    *,
    wide_bytes: int = 0,
) -> Iterator[Tile]:
    """Cut and join copies into tiles of at most `tile_bytes`.

    If source and target store a tensor in different element orders, its tiles have up to
    `wide_bytes`, because larger tiles are read in longer runs. `needed` is the number of bytes that
    all copies together put into each file. With `needed`, the last tile of a file is yielded at
    once, without waiting for other files.
    """
    joining: dict[str, _Joining] = {}
    left = dict(needed or {})
    for copy in copies:
        file = copy.target.file
        if isinstance(copy, Copy):
            scattered = any(not piece.chunk.is_contiguous for piece in copy.pieces)
            most = max(tile_bytes, wide_bytes) if scattered or is_wide(copy) else tile_bytes
            yield from _box_tiles(copy, most, max(most, wide_bytes))
        else:
            if file not in joining:
                joining[file] = _Joining(file, tile_bytes)
            yield from joining[file].add(copy)
        left[file] = left.get(file, 0) - copy.nbytes
        if not left[file] and file in joining:
            yield from joining.pop(file).close()
    for each in joining.values():
        yield from each.close()


def alternate_files(tiles: Iterator[Tile]) -> Iterator[Tile]:
    """Yield all tiles in another order: of the next `_AHEAD` tiles, always one of the file that was
    least recently yielded.

    A file system lets only one thread write to a file at a time, so threads that take consecutive
    tiles of one file wait for each other.
    """
    waiting: list[Tile] = []
    turns: dict[str, int] = {}
    for turn in count():
        waiting.extend(islice(tiles, _AHEAD - len(waiting)))
        if not waiting:
            return
        at = min(range(len(waiting)), key=lambda each: turns.get(waiting[each].file, -1))
        tile = waiting.pop(at)
        turns[tile.file] = turn
        yield tile


def _box_tiles(copy: Copy, tile_bytes: int, wide_bytes: int) -> Iterator[Tile]:
    """Yield tiles of the copy. The elements of a tile fit into a buffer both before and after the
    cast."""
    widest = max(copy.source_dtype.itemsize, copy.target_dtype.itemsize)
    index = BoxIndex([piece.box for piece in copy.pieces])
    file, offset = copy.target.file, copy.target.offset
    most = tile_bytes // widest
    if copy.scaled is not None:
        most = elements_of_tile(copy, most, wide_bytes // widest, tile_bytes)
    for box in contiguous_boxes(copy.target.box, most):
        overlapping = index.overlapping(box)
        pieces = [ChunkBox(copy.pieces[position].chunk, common) for position, common in overlapping]
        nbytes = box.numel * copy.target_dtype.itemsize
        part = BoxPart(copy.key, box, pieces, copy.scaled)
        yield Tile(file, offset, nbytes, copy.source_dtype, copy.target_dtype, (part,))
        offset += nbytes


class _Joining:
    """The tile of one output file that is still being filled with small copies.

    Tiles end at multiples of their size in the file. So each write covers whole pages, and no two
    threads write to the same page.
    """

    def __init__(self, file: str, tile_bytes: int) -> None:
        self._file = file
        self._tile_bytes = tile_bytes
        self._kind: tuple[str, DType, DType] | None = None
        self._parts: list[RangePart] = []
        self._pieces = 0
        self._begin = self._end = self._limit = 0

    def add(self, copy: RangeCopy) -> Iterator[Tile]:
        """Add `copy`, and yield the tiles that are full."""
        key, (begin, stop, _, offset), source_dtype, target_dtype, pieces = copy
        kind = (key.role, source_dtype, target_dtype)
        if offset != self._end or kind != self._kind or self._pieces >= MAX_PIECES:
            yield from self.close()
            self._kind, self._end = kind, offset
        itemsize = target_dtype.itemsize
        while begin < stop:
            if not self._parts:
                self._open()
            numel = min(stop - begin, (self._limit - self._end) // itemsize)
            if not numel:
                yield from self.close()
                continue
            begin += numel
            taken, pieces = split_ranges(pieces, begin, source_dtype.itemsize)
            self._parts.append(RangePart(key, numel, taken))
            self._pieces += len(taken)
            self._end += numel * itemsize

    def _open(self) -> None:
        self._begin, size = self._end, self._tile_bytes
        left = size - self._begin % size
        self._limit = self._begin + (left if left >= WIDEST_ITEM_BYTES else size)

    def close(self) -> Iterator[Tile]:
        """Yield the unfinished tile, unless it is empty."""
        if self._parts and self._kind is not None:
            _, source_dtype, target_dtype = self._kind
            nbytes = self._end - self._begin
            yield Tile(self._file, self._begin, nbytes, source_dtype, target_dtype, self._parts)
        self._parts, self._pieces = [], 0


def split_ranges(
    pieces: tuple[Range, ...], at: int, itemsize: int
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """Cut consecutive ranges at element `at`. Return the ranges before this element, and the rest.
    `itemsize` is the size in bytes of an element in the source files."""
    if pieces[-1].end <= at:
        return pieces, ()
    whole = next(i for i, piece in enumerate(pieces) if piece.end > at)
    begin, end, file, offset = pieces[whole]
    if begin == at:
        return pieces[:whole], pieces[whole:]
    rest = Range(at, end, file, offset + (at - begin) * itemsize)
    return (
        (*pieces[:whole], Range(begin, at, file, offset)),
        (rest, *pieces[whole + 1 :]),
    )


def is_wide(copy: Copy) -> bool:
    """Return whether larger tiles are faster, because the source stores the elements in another
    order than the target."""
    return copy.scaled is not None and copy.scaled.tensor.scheme.is_transposed


def elements_of_tile(copy: Copy, most: int, wide: int, buffer_bytes: int) -> int:
    """Return the number of elements in a tile of a computed weight (`ScaledCast`), at most `most`.
    If possible, a tile is a number of whole rows of blocks, so that each block is read only once. A
    tile of a single row of blocks may have up to `wide` elements.

    Raises:
        BadRequest: as `check_buffer`.
    """
    assert copy.scaled is not None
    tensor, shape = copy.scaled.tensor, copy.target.box.shape
    check_buffer(copy.key, tensor, buffer_bytes)
    block = tensor.scheme.smallest_block
    if len(block) < 2 or len(shape) < 2:
        return most
    rows = block[-2] * shape[-1]
    return most // rows * rows or (rows if rows <= wide else most)


def check_buffer(key: Key, tensor: ScaledCast, buffer_bytes: int) -> None:
    """Check that one block of a quantised weight and its inputs fit into a worker's buffer.

    Raises:
        BadRequest: they do not fit, so --max-memory must be larger.
    """
    shape = tensor.shape
    smallest = tensor.scheme.smallest_block
    smallest = (1,) * (len(shape) - len(smallest)) + smallest
    least = Box((0,) * len(shape), tuple(map(min, smallest, shape)))
    if least.is_empty:
        return
    needed = 2 * max(tensor.bytes_read(least), tensor.scheme.work_bytes(least))
    if needed > buffer_bytes:
        block = "x".join(map(str, least.shape))
        raise BadRequest(
            f"--max-memory is too small for {key.name}: a block of {block} takes {needed} bytes, "
            f"and a worker has buffers of {buffer_bytes}; give it more memory, or take fewer "
            "--workers"
        )
