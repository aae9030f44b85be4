"""Boxes: N-d blocks of a logical tensor, and the proof that a set of them covers it exactly.

The whole tool relies on two facts:

1. A flat range [a, b) of a row-major n-d tensor is at most 2n-1 boxes, and the elements of each are
   contiguous in the range (`boxes_of_range`). A ZeRO partition is therefore the same kind of thing
   as an FSDP or tensor-parallel shard.
2. Identical boxes are replicas and count once. Boxes cover a tensor exactly if they are pairwise
   disjoint and inside the tensor, and if their sizes add up to the size of the tensor
   (`prove_cover`). Adding the sizes alone proves nothing: for a tensor of four rows, the boxes
   "rows 0 to 2" and "row 1" have four rows in all, but row 3 is missing.

Comparing every pair of boxes would take quadratic time. So the proof sorts the boxes along the
dimension with the most distinct starts, and visits them in this order. `BoxIndex` does the same to
find the boxes that share elements with a given box.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor. `start` and `shape` are in elements and have one entry for each
    dimension.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements in the box; 1 for the box of a 0-d tensor."""
        return prod(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        """The first index past the box in each dimension."""
        return tuple(a + n for a, n in zip(self.start, self.shape, strict=True))

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box that covers a tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    def intersect(self, other: Box) -> Box | None:
        """Return the block that both boxes have in common, or None if they share no element."""
        start, shape = [], []
        for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True):
            first = a if a > b else b
            count = (a + n if a + n < b + m else b + m) - first
            if count <= 0:
                return None
            start.append(first)
            shape.append(count)
        return Box(tuple(start), tuple(shape))

    def contains(self, other: Box) -> bool:
        """Return whether every element of `other` is in this box."""
        return all(
            a <= x and y <= b
            for a, b, x, y in zip(self.start, self.stop, other.start, other.stop, strict=True)
        )

    def relative_to(self, origin: Box) -> Box:
        """Return this box with its position counted from the start of the box `origin`."""
        return Box(tuple(a - o for a, o in zip(self.start, origin.start, strict=True)), self.shape)

    def __str__(self) -> str:
        ranges = (f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))
        return f"[{', '.join(ranges)}]"


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous row-major tensor of this shape."""
    return tuple(accumulate(reversed(shape[1:]), lambda a, n: a * n, initial=1))[::-1][: len(shape)]


def boxes_of_range(shape: Sequence[int], begin: int, end: int) -> list[Box]:
    """Return the boxes, in order, that cover the flat range [begin, end) of a row-major tensor.

    There are at most 2n-1 boxes for n dimensions, and the elements of each box are contiguous in
    the range. The whole of a 0-d tensor is the range [0, 1).

    Raises:
        ValueError: the range is not inside the tensor.
    """
    if not 0 <= begin <= end <= prod(shape):
        raise ValueError(f"range [{begin}, {end}) is outside a tensor of {prod(shape)} elements")
    if begin == end:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = begin // row, (end - 1) // row
    if first == last:
        return [
            _prepend(first, box)
            for box in boxes_of_range(shape[1:], begin - first * row, end - first * row)
        ]
    boxes: list[Box] = []
    if begin > first * row:
        head = boxes_of_range(shape[1:], begin - first * row, row)
        boxes += (_prepend(first, box) for box in head)
        first += 1
    whole_rows = end // row
    if whole_rows > first:
        boxes.append(Box((first, *(0 for _ in shape[1:])), (whole_rows - first, *shape[1:])))
    if end > whole_rows * row:
        tail = boxes_of_range(shape[1:], 0, end - whole_rows * row)
        boxes += (_prepend(whole_rows, box) for box in tail)
    return boxes


def _prepend(index: int, box: Box) -> Box:
    return Box((index, *box.start), (1, *box.shape))


def contiguous_boxes(box: Box, most: int) -> Iterator[Box]:
    """Cut `box` into consecutive boxes of at most `most` elements, in row-major order.

    The elements of each result are contiguous in a tensor that has the shape of `box`. The first
    dimension is cut; if one of its indices has more than `most` elements, the next dimension is cut
    too, and so on.
    """
    if most < 1:
        raise ValueError(f"a box holds at least one element, not {most}")
    if box.is_empty:
        return
    if box.numel <= most:
        yield box
        return
    row = prod(box.shape[1:])
    step = max(1, most // row)
    for first in range(0, box.shape[0], step):
        count = min(step, box.shape[0] - first)
        piece = Box((box.start[0] + first, *box.start[1:]), (count, *box.shape[1:]))
        if count == 1 and row > most:
            inner = Box(box.start[1:], box.shape[1:])
            yield from (_prepend(piece.start[0], part) for part in contiguous_boxes(inner, most))
        else:
            yield piece


class BoxIndex:
    """The boxes of one tensor, sorted so that the boxes that share elements with a given box are
    found quickly.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._axis = _busiest_axis(boxes)
        if self._axis is None:
            self._order = list(range(len(boxes)))
            self._starts: list[int] = []
            self._reach: list[int] = []
        else:
            axis = self._axis
            self._order = sorted(range(len(boxes)), key=lambda i: boxes[i].start[axis])
            self._starts = [boxes[i].start[axis] for i in self._order]
            stops = (boxes[i].start[axis] + boxes[i].shape[axis] for i in self._order)
            self._reach = list(accumulate(stops, max))
        self._boxes = boxes

    def overlapping(self, box: Box) -> Iterator[tuple[int, Box]]:
        """Yield (number, intersection) for each box that shares an element with `box`; the number
        is the position in the original list of boxes.
        """
        for position in self._candidates(box):
            if (common := self._boxes[position].intersect(box)) is not None:
                yield position, common

    def _candidates(self, box: Box) -> Iterator[int]:
        if self._axis is None:
            yield from self._order
            return
        start = box.start[self._axis]
        stop = start + box.shape[self._axis]
        for at in range(bisect_right(self._reach, start), len(self._order)):
            if self._starts[at] >= stop:
                return
            yield self._order[at]


def _busiest_axis(boxes: Sequence[Box]) -> int | None:
    """Return the dimension in which the boxes have the largest number of different starts. Return
    None if `boxes` is empty, or if the boxes are 0-d.
    """
    if not boxes or not boxes[0].start:
        return None
    return max(range(len(boxes[0].start)), key=lambda d: len({box.start[d] for box in boxes}))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two distinct boxes that share elements."""

    first: Box
    second: Box


@dataclass(frozen=True, slots=True)
class Hole:
    """Elements of a tensor that are in no box. `box` is the first missing block, and `missing` is
    the number of all missing elements.
    """

    box: Box
    missing: int


def prove_cover(shape: Sequence[int], boxes: Iterable[Box]) -> Overlap | Hole | None:
    """Check that the boxes cover a tensor of `shape` exactly. Return None if the cover is exact,
    else an overlap or a hole.

    Identical boxes are replicas and count once; empty boxes are ignored.

    Raises:
        ValueError: a box has another number of dimensions, or reaches outside the tensor.
    """
    distinct = list(dict.fromkeys(box for box in boxes if not box.is_empty))
    whole = Box.whole(shape)
    for box in distinct:
        if len(box.shape) != len(whole.shape) or not whole.contains(box):
            raise ValueError(f"box {box} is outside a tensor of shape {tuple(shape)}")
    if (overlap := _first_overlap(distinct)) is not None:
        return overlap
    missing = whole.numel - sum(box.numel for box in distinct)
    if missing == 0:
        return None
    return Hole(_a_missing_block(whole, distinct), missing)


def _first_overlap(distinct: Sequence[Box]) -> Overlap | None:
    index = BoxIndex(distinct)
    for position, box in enumerate(distinct):
        for other, _ in index.overlapping(box):
            if other != position:
                return Overlap(box, distinct[other])
    return None


def _a_missing_block(whole: Box, distinct: Sequence[Box]) -> Box:
    if not whole.shape or not distinct:
        return whole
    cuts = sorted(
        {whole.start[0], whole.stop[0]}
        | {b.start[0] for b in distinct}
        | {b.stop[0] for b in distinct}
    )
    index = BoxIndex(distinct)
    for low, high in pairwise(cuts):
        slab = Box((low, *whole.start[1:]), (high - low, *whole.shape[1:]))
        parts = [common for _, common in index.overlapping(slab)]
        if sum(part.numel for part in parts) == slab.numel:
            continue
        inner = _a_missing_block(
            Box(slab.start[1:], slab.shape[1:]),
            [Box(part.start[1:], part.shape[1:]) for part in parts],
        )
        return Box((low, *inner.start), (high - low, *inner.shape))
    raise AssertionError(
        "internal error: the sizes of the boxes show that a part is not covered, but no such "
        "part was found"
    )
