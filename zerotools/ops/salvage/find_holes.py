"""The undamaged chunks of a tensor, and its holes: the boxes that no undamaged chunk has.

Example: a tensor of 2 x 4 elements is divided among three ranks of ZeRO-3 into 3, 3 and 2 elements,
and rank 1 is lost. Elements [0, 3) and [6, 8) of the flattened tensor are undamaged. The hole is
[3, 6), which consists of the boxes [0:1, 3:4] and [1:2, 0:2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from zerotools.core.boxes import Box, BoxIndex, Overlap, boxes_of_range, prove_cover
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.flat_ranges import Range, Ranges, ranges_of
from zerotools.io.distcp.item_chunks import ItemChunks

SoundBytes = Callable[[str, int, int], int]
"""A function that takes a file and a range [begin, end), and returns the number of undamaged bytes
at the beginning of the range.
"""
_MOST_SAID = 4


@dataclass(frozen=True)
class Holes:
    """The missing parts of a tensor.

    Attributes:
        boxes: the missing boxes, in order. They do not overlap.
        ranges: the missing elements as ranges of the flattened tensor, if the remaining chunks are
            such ranges; else None.
        files: the files that held the missing parts, as far as known.
        why: a sentence with the reason, if no lost file is the reason; else None.
    """

    key: Key
    dtype: DType
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    ranges: tuple[tuple[int, int], ...] | None = None
    files: tuple[str, ...] = ()
    why: str | None = None

    @property
    def numel(self) -> int:
        """The number of elements of the tensor."""
        return Box.whole(self.shape).numel

    @property
    def elements(self) -> int:
        """The number of elements that are missing."""
        return sum(box.numel for box in self.boxes)

    @property
    def is_total(self) -> bool:
        """True if all elements are missing."""
        return self.elements == self.numel

    def __str__(self) -> str:
        return boxes_text(self.boxes, self.ranges, self.numel)


def boxes_text(
    boxes: tuple[Box, ...], ranges: tuple[tuple[int, int], ...] | None, numel: int
) -> str:
    """Return a short text for boxes of a tensor with `numel` elements. It lists only the first
    boxes if there are many."""
    lost = sum(box.numel for box in boxes)
    if lost == numel:
        return f"all of its {count_text(numel, 'element')}"
    if ranges is not None:
        parts = [f"{begin}:{end}" for begin, end in ranges]
        what = "elements "
    else:
        parts, what = [str(box) for box in boxes], ""
    more = f" and {len(parts) - _MOST_SAID} more" if len(parts) > _MOST_SAID else ""
    return f"{what}{', '.join(parts[:_MOST_SAID])}{more} ({lost} of {numel})"


def sound_tensor(tensor: Tensor, sound: SoundBytes) -> tuple[Tensor, tuple[str, ...]]:
    """Return the tensor with only its undamaged chunks, and the files of its damaged chunks. The
    undamaged beginning of a damaged chunk may remain."""
    lost: dict[str, None] = {}
    if isinstance(tensor.chunks, Ranges):
        kept = list(_sound_ranges(tensor.dtype, tensor.chunks.each(), sound, lost))
        chunks = Ranges(tensor.dtype, tensor.shape, lambda: kept)
        return replace(tensor, chunks=chunks), tuple(lost)
    found = tuple(_sound_chunks(tensor, sound, lost))
    return replace(tensor, chunks=found), tuple(lost)


def _sound_ranges(
    dtype: DType, ranges: Iterable[Range], sound: SoundBytes, lost: dict[str, None]
) -> Iterator[Range]:
    for begin, end, file, offset in ranges:
        stop = offset + (end - begin) * dtype.itemsize
        count = sound(file, offset, stop) // dtype.itemsize
        if count < end - begin:
            lost[file] = None
        if count:
            yield Range(begin, begin + count, file, offset)


def _sound_chunks(tensor: Tensor, sound: SoundBytes, lost: dict[str, None]) -> Iterator[Chunk]:
    for chunk in _readable(tensor, lost):
        if chunk.box.is_empty:
            continue
        size = chunk.extent(tensor.dtype)
        count = sound(chunk.file, chunk.offset, chunk.offset + size)
        if count < size:
            lost[chunk.file] = None
        if count == size:
            yield chunk
        elif chunk.is_contiguous:
            yield from _beginning(chunk, tensor.dtype, count // tensor.dtype.itemsize)


def _readable(tensor: Tensor, lost: dict[str, None]) -> Iterator[Chunk]:
    """Yield the chunks of a tensor. Skip chunks that a pickle describes in a damaged item, and add
    their files to `lost`."""
    if not isinstance(tensor.chunks, ItemChunks):
        yield from tensor.chunks
        return
    for number, item in enumerate(tensor.chunks.items()):
        try:
            yield tensor.chunks[number]
        except (BadFile, Unsupported):
            lost[item.file] = None


def _beginning(chunk: Chunk, dtype: DType, count: int) -> Iterator[Chunk]:
    """Yield chunks for the first `count` elements of a contiguous chunk."""
    offset = chunk.offset
    for box in boxes_of_range(chunk.box.shape, 0, count):
        start = tuple(a + b for a, b in zip(chunk.box.start, box.start, strict=True))
        yield Chunk(Box(start, box.shape), chunk.file, offset)
        offset += box.numel * dtype.itemsize


def holes_of(key: Key, tensor: Tensor, files: tuple[str, ...] = ()) -> Holes | None:
    """Return the elements that no chunk of `tensor` has; None if it is complete. If chunks
    contradict each other, all elements count as missing."""
    shape, numel = tensor.shape, tensor.numel
    ranges = ranges_of(tensor)
    if ranges is not None and not _overlap(ranges):
        lacking = tuple(uncovered_ranges(numel, ((r.begin, r.end) for r in ranges)))
        boxes = tuple(box for each in lacking for box in boxes_of_range(shape, *each))
        return Holes(key, tensor.dtype, shape, boxes, lacking, files) if lacking else None
    found = [chunk.box for chunk in tensor.chunks]
    try:
        contradicts = isinstance(prove_cover(shape, found), Overlap)
    except ValueError:
        contradicts = True
    if contradicts:
        why = (
            "its parts contradict each other: different parts overlap, or a part lies outside of "
            "the tensor"
        )
        return Holes(key, tensor.dtype, shape, (Box.whole(shape),), None, files, why)
    boxes = tuple(uncovered_boxes(shape, found))
    return Holes(key, tensor.dtype, shape, boxes, None, files) if boxes else None


def _overlap(ranges: list[Range]) -> bool:
    """Return whether two different ranges share elements."""
    end, last = 0, (0, 0)
    for begin, stop in sorted((each.begin, each.end) for each in ranges):
        if begin < end and (begin, stop) != last:
            return True
        end, last = max(end, stop), (begin, stop)
    return False


# Find the parts of a tensor that no box covers, and return them as few boxes.
#
# Example: a tensor of 4 x 4 elements lacks elements [6, 12) of its flattened form, because rank 1
# of 3 is lost. The boxes [0:1, 0:4], [1:2, 0:2] and [3:4, 0:4] exist. These elements are uncovered:
#
#     . . . .
#     . . x x        [1:2, 2:4]
#     x x x x        [2:3, 0:4]
#     . . . .
#
# The tensor is cut into slabs along its first dimension, at each begin and end of a box. The
# uncovered parts of a slab are found by the same method in one dimension less. Adjacent slabs with
# equal uncovered parts are joined again.


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
