"""Chunks that are ranges of a flattened tensor, kept as ranges as long as possible.

Every ZeRO partition is one. A thousand ranks cut a large model into a million of them, and the
boxes of a range are several objects each, so they are made only where a layout that is not flat
meets them. Ranges in order are proved to cover a tensor by walking along them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from zerotools.core.boxes import Box, boxes_of_range
from zerotools.core.checkpoint import Chunk
from zerotools.core.dtypes import DType


class Range(NamedTuple):
    """Elements [begin, end) of a flattened tensor, from byte `offset` of `file` on."""

    begin: int
    end: int
    file: str
    offset: int


class Ranges(Sequence[Chunk]):
    """The chunks of a tensor of `shape`, computed each time so that no list of them is kept."""

    __slots__ = ("_dtype", "_make", "_shape")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], make: Callable[[], Iterable[Range]]
    ) -> None:
        """`make` gives the ranges, none of them empty."""
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

    def cover(self, sizes: Mapping[str, int]) -> bool:
        """Whether the ranges follow one another from the first element to the last, each inside
        its file as far as its size is known. False proves nothing: they may be in another order.
        """
        at, itemsize = 0, self._dtype.itemsize
        for begin, end, file, offset in self._make():
            stop = offset + (end - begin) * itemsize
            if begin != at or sizes.get(file, stop) < stop:
                return False
            at = end
        return at == prod(self._shape)

    def flattened(self) -> Iterator[Chunk]:
        """The same chunks as chunks of the flattened tensor."""
        for begin, end, file, offset in self._make():
            yield Chunk(Box((begin,), (end - begin,)), file, offset)
