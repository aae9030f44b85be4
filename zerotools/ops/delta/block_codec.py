"""Encode the changed elements of a block, and apply the change to the old elements of the block.

Positions are gaps between changed elements, one byte each; 255 means "255 elements and more".
Values are differences: each element is taken as an unsigned integer of w bits, and the new integer
minus the old one is computed modulo 2^w. The differences 0, -1, 1, -2, ... are stored as 0, 1, 2,
3, ... (zigzag order), so a small change of a float becomes a small number. The bytes of the values
are stored in planes: first the lowest byte of every value, then the next byte of every value.
Positions and values are compressed by zstd.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from threading import local
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zerotools.core.errors import BadFile
from zerotools.io.files.optional_packages import package_not_installed

Array = npt.NDArray[Any]
Elements = bytes | memoryview
"""The bytes of consecutive elements."""
BLOCK_ELEMENTS = 1 << 20
"""The number of elements in a block. The last block of a tensor may have fewer."""
LEVEL = 1
_LONG_GAP = 255
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_DENSE_PART = 0.2
"""If more than this fraction of a block changed, the differences of all elements are stored."""


class DeltaBlockKind(IntEnum):
    """The data that the file stores for a block."""

    SAME = 0
    """No element changed."""
    SPARSE = 1
    """Positions and differences of the elements that changed."""
    DENSE = 2
    """Differences of all elements."""
    NEW = 3
    """The elements themselves: the first model does not have the tensor."""


class EncodedBlock(NamedTuple):
    """A block as the file stores it: the number of changed elements, and their compressed positions
    and values."""

    kind: DeltaBlockKind
    changed: int
    positions: bytes
    values: bytes


class Compression:
    """Compresses and decompresses byte strings with zstd. Each thread has its own zstd contexts.

    Raises BadRequest if the package `zstandard` is not installed.
    """

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError:
            raise package_not_installed("a delta", "zstandard") from None
        self._zstd = zstandard
        self._own = local()

    def pack(self, data: Array | bytes | bytearray) -> bytes:
        """Return `data` compressed."""
        if not hasattr(self._own, "compressor"):
            self._own.compressor = self._zstd.ZstdCompressor(level=LEVEL)
        packed: bytes = self._own.compressor.compress(data)
        return packed

    def unpack(self, data: bytes, length: int) -> bytes:
        """Decompress `data` to `length` bytes. Raises BadFile if `data` is damaged or has another
        length."""
        if not hasattr(self._own, "decompressor"):
            self._own.decompressor = self._zstd.ZstdDecompressor()
        try:
            if self._zstd.frame_content_size(data) != length:
                raise BadFile("a compressed part has another length than in its header")
            found: bytes = self._own.decompressor.decompress(data, max_output_size=length)
        except self._zstd.ZstdError as error:
            raise BadFile(f"a compressed part is damaged: {error}") from None
        if len(found) != length:
            raise BadFile("a compressed part has another length than in its header")
        return found


class BlockBuffers(local):
    """Memory of each thread for the elements of blocks. For new memory the system clears each page,
    which takes as long as copying the elements."""

    def __init__(self) -> None:
        self._buffers: dict[str, bytearray] = {}

    def take(self, use: str, nbytes: int) -> memoryview:
        """Return `nbytes` bytes of memory with undefined values. They are valid until the thread's
        next call with the same `use`."""
        if len(self._buffers.get(use, b"")) < nbytes:
            self._buffers[use] = bytearray(nbytes)
        return memoryview(self._buffers[use])[:nbytes]


def encode_block(
    before: Elements | None, after: Elements, itemsize: int, pack: Callable[[Array], bytes]
) -> EncodedBlock:
    """Return the change from `before` to `after`, the bytes of equally many elements of `itemsize`
    bytes. If `before` is None, return the elements of `after` themselves."""
    new = np.frombuffer(after, _UNSIGNED[itemsize])
    if before is None:
        return EncodedBlock(DeltaBlockKind.NEW, len(new), b"", pack(_planes(new)))
    old = np.frombuffer(before, _UNSIGNED[itemsize])
    differs = old != new
    changed = int(np.count_nonzero(differs))
    if not changed:
        return EncodedBlock(DeltaBlockKind.SAME, 0, b"", b"")
    if changed > _DENSE_PART * len(new):
        return EncodedBlock(DeltaBlockKind.DENSE, changed, b"", pack(_planes(_zigzag(new - old))))
    places = _places(differs)
    differences = _zigzag(new.take(places) - old.take(places))
    gaps = _gaps(places)
    positions = len(gaps).to_bytes(4, "little") + pack(gaps)
    return EncodedBlock(DeltaBlockKind.SPARSE, changed, positions, pack(_planes(differences)))


def apply_block(
    before: memoryview | None,
    block: EncodedBlock,
    itemsize: int,
    unpack: Callable[[bytes, int], bytes],
) -> memoryview:
    """Apply the change `block` to the elements `before`, and return the new elements. They take the
    memory of `before`, except for those of a new tensor.

    Raises BadFile if the block does not fit these elements.
    """
    if block.kind == DeltaBlockKind.NEW:
        return _bytes_of(_elements(unpack(block.values, block.changed * itemsize), itemsize))
    if before is None:
        raise BadFile("a block changes elements that do not exist")
    if block.kind == DeltaBlockKind.SAME:
        return before
    old = np.frombuffer(before, _UNSIGNED[itemsize])
    count = len(old) if block.kind == DeltaBlockKind.DENSE else block.changed
    changes = _unzigzag(_elements(unpack(block.values, count * itemsize), itemsize))
    if block.kind == DeltaBlockKind.DENSE:
        old += changes
    else:
        places = _positions(block.positions, len(old), block.changed, unpack)
        np.add.at(old, places, changes)
    return before


def _bytes_of(values: Array) -> memoryview:
    return values.view(np.uint8).data


def _places(differs: Array) -> Array:
    """Return the indices of the elements of `differs` that are True.

    `numpy.flatnonzero` takes some 40 ns for each of them if at most a tenth of the elements are. So
    it gets only the words of eight elements that are not 0.
    """
    if 10 * np.count_nonzero(differs) > len(differs):
        return np.flatnonzero(differs)
    whole = len(differs) & ~7
    words = differs[:whole].view(np.uint64)
    used = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words.take(used).view(np.bool_))
    places: Array = (used.take(inside >> 3) << 3) + (inside & 7)
    if whole == len(differs):
        return places
    return np.append(places, whole + np.flatnonzero(differs[whole:]))


def _gaps(places: Array) -> Array:
    gaps = np.diff(places, prepend=-1) - 1
    rest, longs = gaps.astype(np.uint8), np.flatnonzero(gaps >= _LONG_GAP)
    if not len(longs):
        return rest
    counts, rest[longs] = np.divmod(gaps[longs], _LONG_GAP)
    return np.insert(rest, np.repeat(longs, counts), _LONG_GAP)


def _positions(
    packed: bytes, elements: int, changed: int, unpack: Callable[[bytes, int], bytes]
) -> Array:
    length = int.from_bytes(packed[:4], "little")
    if length > changed + elements // _LONG_GAP + 1:
        raise BadFile("a block has more positions than elements")
    gaps = np.frombuffer(unpack(packed[4:], length), np.uint8)
    is_end = gaps != _LONG_GAP
    places: Array = np.cumsum(gaps.astype(np.int64) + is_end)[is_end] - 1
    if len(places) != changed or (changed and int(places[-1]) >= elements):
        raise BadFile(
            "the number of positions in a block differs from the number of elements that it "
            "changes, or a position lies outside of the block"
        )
    return places


def _zigzag(differences: Array) -> Array:
    width = differences.dtype.itemsize
    signed = differences.view(_SIGNED[width])
    found: Array = ((signed << 1) ^ (signed >> (8 * width - 1))).view(_UNSIGNED[width])
    return found


def _unzigzag(values: Array) -> Array:
    found: Array = (values >> 1) ^ (-(values & 1).astype(_SIGNED[values.dtype.itemsize])).view(
        values.dtype
    )
    return found


def _planes(values: Array) -> Array:
    planes = np.empty((values.dtype.itemsize, len(values)), np.uint8)
    for place, plane in enumerate(planes):
        np.copyto(plane, values >> (8 * place) if place else values, casting="unsafe")
    return planes.ravel()


def _elements(planes: bytes, itemsize: int) -> Array:
    rows = np.frombuffer(planes, np.uint8).reshape(itemsize, -1)
    found: Array = rows[0].astype(_UNSIGNED[itemsize])
    for place, plane in enumerate(rows[1:], 1):
        found |= plane.astype(found.dtype) << (8 * place)
    return found
