"""Chunks of a tensor that is made from parts of tensors in a DCP, without opening an archive.

megatron-core stores the layers of a model stacked in one tensor: each stored chunk is a row-major
box, and one layer of it is a box again. Up to 0.15 it stores optimizer state as flat pieces: a
piece is a range of a flattened box, which is at most 2n-1 boxes. The part of an item that a chunk
is, is known in advance; the position of the item's bytes is found when the chunk is accessed.

In a stored chunk with the box [2:4, 0:8, 0:6], layer 3 is the box [0:8, 0:6] from element 48.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Chunk
from zerotools.core.dtypes import DType
from zerotools.core.errors import Unsupported
from zerotools.io.distcp.items import ItemChunks
from zerotools.io.distcp.metadata import Item


class StoredPiece(NamedTuple):
    """The box `box` of the new tensor: the part of chunk `number` of `source` that begins at
    `start`, in elements from the chunk's first. It has the last dimensions of the chunk, or, with
    `is_flat`, consecutive elements of the chunk's last dimension."""

    source: ItemChunks
    number: int
    start: tuple[int, ...]
    box: Box
    is_flat: bool = False


class DerivedChunks(ItemChunks):
    """The chunks of one tensor of type `dtype`, made from `pieces` at each access; with the errors
    of `ItemChunks`."""

    def __init__(self, dtype: DType, pieces: Callable[[], Sequence[StoredPiece]]) -> None:
        self._type = dtype
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self._pieces())

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return [self._made(piece) for piece in self._pieces()[index]]
        return self._made(self._pieces()[index])

    def __iter__(self) -> Iterator[Chunk]:
        return map(self._made, self._pieces())

    def items(self) -> Iterator[Item]:
        """Yield the items of the chunks' archives: one for each chunk, so items may repeat."""
        return (piece.source.item(piece.number) for piece in self._pieces())

    def item(self, number: int) -> Item:
        """Return the item of one chunk's archive."""
        piece = self._pieces()[number]
        return piece.source.item(piece.number)

    @property
    def boxes(self) -> Sequence[Box]:
        """The boxes of the chunks, for which no archive is opened."""
        return [piece.box for piece in self._pieces()]

    def box(self, number: int) -> Box:
        """Return the box of one chunk."""
        return self._pieces()[number].box

    def _made(self, piece: StoredPiece) -> Chunk:
        stored = piece.source[piece.number]
        strides = stored.strides or row_major_strides(stored.box.shape)
        skipped = sum(a * b for a, b in zip(piece.start, strides, strict=True))
        offset = stored.offset + skipped * self._type.itemsize
        if piece.is_flat:
            if strides[-1] != 1 and piece.box.numel > 1:
                raise Unsupported(f"{stored.file} stores a flat piece with gaps, at {offset}")
            return Chunk(piece.box, stored.file, offset)
        kept = strides[len(strides) - len(piece.box.shape) :]
        chunk = Chunk(piece.box, stored.file, offset, kept)
        return Chunk(piece.box, stored.file, offset) if chunk.is_contiguous else chunk
