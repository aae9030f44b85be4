"""Chunks that are ranges of a flattened tensor, converted to boxes as late as possible.

Every ZeRO partition, and every slice along the first dimension, is such a range. A thousand ranks
divide a large model into a million ranges, and each range has several boxes. So boxes are made
only if a layout that is not flat needs them. To prove that ordered ranges cover a tensor, one pass
over them is enough. To match the ranges of two checkpoints, one pass over both is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from zerotools.core.boxes import Box, boxes_of_range
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import DType


class Range(NamedTuple):
    """Elements [begin, end) of a flattened tensor, stored at byte `offset` of `file`."""

    begin: int
    end: int
    file: str
    offset: int


class Ranges(Sequence[Chunk]):
    """The chunks of a tensor of `shape`, each a range of the flattened tensor. They are computed
    anew at each access, so that no list of them is kept in memory.
    """

    __slots__ = ("_dtype", "_make", "_shape")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], make: Callable[[], Iterable[Range]]
    ) -> None:
        """Store `make`, a function that returns the ranges; no range may be empty."""
        self._dtype = dtype
        self._shape = shape
        self._make = make

    def __iter__(self) -> Iterator[Chunk]:
        for begin, end, file, offset in self._make():
            for box in boxes_of_range(self._shape, begin, end):
                yield Chunk(box, file, offset)
                offset += box.numel * self._dtype.itemsize

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int and slice alike
        return list(self)[index]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the ranges themselves instead of the function `make` that computes them."""
        return _of_ranges, (self._dtype, self._shape, tuple(self._make()))

    def each(self) -> Iterable[Range]:
        """Yield the ranges in order."""
        return self._make()


def _of_ranges(dtype: DType, shape: tuple[int, ...], ranges: tuple[Range, ...]) -> Ranges:
    return Ranges(dtype, shape, lambda: ranges)


def chunk_locations(tensor: Tensor) -> Iterator[tuple[str, int]]:
    """Yield (file, number of elements) for each chunk. Adjacent chunks may be joined."""
    if isinstance(tensor.chunks, Ranges):
        yield from ((file, end - begin) for begin, end, file, _ in tensor.chunks.each())
    else:
        yield from ((chunk.file, chunk.box.numel) for chunk in tensor.chunks)


def ranges_of(tensor: Tensor) -> list[Range] | None:
    """Return the chunks of a tensor as non-empty ranges of the flattened tensor, in order.

    Return None if a chunk is not contiguous both in its file and in the flattened tensor.
    """
    if isinstance(tensor.chunks, Ranges):
        return list(tensor.chunks.each())
    found = []
    for chunk in tensor.chunks:
        if chunk.box.is_empty:
            continue
        begin = _first_element(chunk.box, tensor.shape)
        if begin is None or not chunk.is_contiguous:
            return None
        found.append(Range(begin, begin + chunk.box.numel, chunk.file, chunk.offset))
    return sorted(found)


def _first_element(box: Box, shape: tuple[int, ...]) -> int | None:
    """Return the index of the first element of a box in the flattened tensor, or None if the box is
    not contiguous there."""
    if len(box.shape) != len(shape):
        return None
    begin, is_one_row = 0, True
    for start, count, size in zip(box.start, box.shape, shape, strict=True):
        if not (is_one_row or (start, count) == (0, size)):
            return None
        if not 0 <= start <= start + count <= size:
            return None
        begin = begin * size + start
        is_one_row = is_one_row and count == 1
    return begin


def covering_ranges(tensor: Tensor, sizes: Mapping[str, int] | None) -> list[Range] | None:
    """Return the ranges of a tensor if they cover the tensor without gap or overlap and each range
    lies inside its file; else None.

    `sizes` maps each file to its size in bytes; if `sizes` is None, files are not checked. Also
    return None if a chunk is not a range, or is a replica, although the tensor may be complete.
    """
    ranges = ranges_of(tensor)
    if ranges is None:
        return None
    at, itemsize = 0, tensor.dtype.itemsize
    for begin, end, file, offset in ranges:
        stop = offset + (end - begin) * itemsize
        if begin != at or (sizes is not None and sizes.get(file, -1) < stop):
            return None
        at = end
    return ranges if at == prod(tensor.shape) else None


def match_ranges(
    sources: Iterable[Range], targets: Iterable[Range], itemsize: int
) -> Iterator[tuple[Range, tuple[Range, ...]]]:
    """Yield each target range with the source ranges that hold its elements.

    Elements have `itemsize` bytes. `sources` and `targets` must both cover the tensor, as
    `covering_ranges` checks.
    """
    remaining = iter(sources)
    begin = end = offset = 0
    file = ""
    for target in targets:
        at, stop = target.begin, target.end
        pieces = []
        while at < stop:
            if at == end:
                begin, end, file, offset = next(remaining)
            until = min(end, stop)
            pieces.append(Range(at, until, file, offset + (at - begin) * itemsize))
            at = until
        yield target, tuple(pieces)
