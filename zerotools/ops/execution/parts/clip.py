"""Cut copies, and the plans of files, down to the share of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from zerotools.core.boxes import Box, BoxIndex, boxes_of_range
from zerotools.core.checkpoint import Chunk, ChunkBox
from zerotools.core.flat_ranges import Range
from zerotools.core.target import CarriedBytes, FilePlan, LiteralBytes
from zerotools.ops.execution.parts.share import ByteRange, Extent, Share
from zerotools.ops.execution.plan import Copy, RangeCopy
from zerotools.ops.execution.tiles import split_ranges


def clip(copies: Iterable[Copy | RangeCopy], share: Share) -> Iterator[Copy | RangeCopy]:
    """Yield the part of each copy that is in `share`."""
    for copy in copies:
        bounds = share.get(copy.target.file)
        if bounds is None:
            continue
        place, itemsize = copy.target, copy.target_dtype.itemsize
        numel = place.end - place.begin if isinstance(place, Range) else place.box.numel
        first, stop = Extent(place.file, place.offset, numel, itemsize).inside(bounds)
        if (first, stop) == (0, numel):
            yield copy
        elif first < stop:
            yield from _cut(copy, first, stop)


def _cut(copy: Copy | RangeCopy, first: int, stop: int) -> Iterator[Copy | RangeCopy]:
    """Yield the copies of the elements [first, stop) that a copy fills."""
    if isinstance(copy, Copy):
        yield from _cut_boxes(copy, first, stop)
        return
    begin, _, file, offset = copy.target
    offset += first * copy.target_dtype.itemsize
    _, rest = split_ranges(copy.pieces, begin + first, copy.source_dtype.itemsize)
    pieces, _ = split_ranges(rest, begin + stop, copy.source_dtype.itemsize)
    yield copy._replace(target=Range(begin + first, begin + stop, file, offset), pieces=pieces)


def _cut_boxes(copy: Copy, first: int, stop: int) -> Iterator[Copy]:
    whole = copy.target
    index = BoxIndex([piece.box for piece in copy.pieces])
    offset = whole.offset + first * copy.target_dtype.itemsize
    for inner in boxes_of_range(whole.box.shape, first, stop):
        start = tuple(a + b for a, b in zip(whole.box.start, inner.start, strict=True))
        box = Box(start, inner.shape)
        pieces = tuple(
            ChunkBox(copy.pieces[position].chunk, common) for position, common in index.meeting(box)
        )
        yield replace(copy, target=Chunk(box, whole.file, offset), pieces=pieces)
        offset += box.numel * copy.target_dtype.itemsize


def clip_plan(plan: FilePlan, bounds: ByteRange) -> FilePlan:
    """Return the part of a plan that is in these bytes of a file. Checksums are not included,
    because they may cover bytes of other runs."""
    if bounds == (0, plan.size):
        return plan
    literals = [
        LiteralBytes(begin, each.data[begin - each.offset : end - each.offset])
        for each in plan.literals
        for begin, end in _common(each.offset, len(each.data), bounds)
    ]
    carried = [
        CarriedBytes(begin, each.source, each.source_offset + begin - each.offset, end - begin)
        for each in plan.carried
        for begin, end in _common(each.offset, each.length, bounds)
    ]
    return FilePlan(plan.size, literals, carried)


def _common(offset: int, length: int, bounds: ByteRange) -> Iterator[tuple[int, int]]:
    begin, end = max(offset, bounds.begin), min(offset + length, bounds.end)
    if begin < end:
        yield begin, end
