"""Find the parts of a tensor that no box covers, and return them as few boxes.

Example: a tensor of 4 x 4 elements lacks elements [6, 12) of its flattened form, because rank 1 of
3 is lost. The boxes [0:1, 0:4], [1:2, 0:2] and [3:4, 0:4] exist. These elements are uncovered:

    . . . .
    . . x x        [1:2, 2:4]
    x x x x        [2:3, 0:4]
    . . . .

The tensor is cut into slabs along its first dimension, at each begin and end of a box. The
uncovered parts of a slab are found by the same method in one dimension less. Adjacent slabs with
equal uncovered parts are joined again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from zerotools.core.boxes import Box, BoxIndex


def uncovered_boxes(shape: Sequence[int], boxes: Iterable[Box]) -> list[Box]:
    """Return disjoint boxes, in order, with the elements of a tensor of `shape` that none of
    `boxes` covers.

    `boxes` may overlap, and may reach outside the tensor.
    """
    whole = Box.whole(shape)
    inside = (box.intersect(whole) for box in boxes)
    return _lacking(whole.shape, list(dict.fromkeys(box for box in inside if box is not None)))


def _lacking(shape: tuple[int, ...], boxes: Sequence[Box]) -> list[Box]:
    whole = Box.whole(shape)
    if whole.is_empty or whole in boxes:
        return []
    if not boxes:
        return [whole]
    cuts = {0, shape[0], *(box.start[0] for box in boxes), *(box.stop[0] for box in boxes)}
    index = BoxIndex(boxes)
    found: list[Box] = []
    begin, lacking = 0, list[Box]()
    for low, high in pairwise(sorted(cuts)):
        slab = Box((low, *whole.start[1:]), (high - low, *shape[1:]))
        parts = (Box(part.start[1:], part.shape[1:]) for _, part in index.overlapping(slab))
        inner = _lacking(shape[1:], list(dict.fromkeys(parts)))
        if inner != lacking:
            found += _with_first_dimension(begin, low, lacking)
            begin, lacking = low, inner
    return [*found, *_with_first_dimension(begin, shape[0], lacking)]


def _with_first_dimension(begin: int, end: int, boxes: Iterable[Box]) -> list[Box]:
    return [Box((begin, *box.start), (end - begin, *box.shape)) for box in boxes]


def uncovered_ranges(numel: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges [begin, end), in order, of a flattened tensor of `numel` elements that none
    of `ranges` covers.
    """
    found, at = [], 0
    for begin, end in sorted(ranges):
        if begin > at:
            found.append((at, min(begin, numel)))
        at = max(at, end)
    return [*found, (at, numel)] if at < numel else found
