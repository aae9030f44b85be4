"""Divide the bytes of one output into N shares, one for each of N runs.

The files of the output are put in a row, in their order, and the row is cut into N shares of equal
size. All runs make the same cuts from the same layout, so they need not communicate.

    files     a: 5 GiB    b: 5 GiB    c: 2 GiB                 in 3 shares of 4 GiB
    share 1   a[0, 4)
    share 2   a[4, 5)     b[0, 3)
    share 3               b[3, 5)     c[0, 2)

A cut near the beginning or end of a file is moved there, because slightly unequal shares are better
than two runs that write the same file. A cut inside a file is at a multiple of `ALIGNMENT`, and
never inside an element. So no two machines write to the same page of a file, which network file
systems do not support. A file is not cut if such a multiple may lie inside an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zerotools.core.boxes import Box, BoxIndex, boxes_of_range
from zerotools.core.checkpoint import Chunk, ChunkBox, Key, Tensor
from zerotools.core.flat_ranges import Range, Ranges
from zerotools.core.target import CarriedBytes, FilePlan, LiteralBytes, Target
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.plan_copies import Copy, RangeCopy
from zerotools.ops.execution.tiles import split_ranges

ALIGNMENT = 2**20
"""Cuts inside a file are at multiples of this number of bytes. It is a multiple of every page size,
and of the stripe sizes of Lustre and of NFS.
"""
_NEAR = 16
"""A cut is moved to the beginning or end of a file if its distance from there is at most 1/16 of a
share.
"""


class ByteRange(NamedTuple):
    """Bytes [begin, end) of a file. A tensor's element belongs to the range of its first byte."""

    begin: int
    end: int


class Extent(NamedTuple):
    """`numel` consecutive elements of `itemsize` bytes each, from byte `offset` of `file`."""

    file: str
    offset: int
    numel: int
    itemsize: int

    def inside(self, bounds: ByteRange) -> tuple[int, int]:
        """Return the elements [first, stop) that belong to the bytes `bounds`."""
        first, stop = (self._element_at(byte) for byte in bounds)
        return first, stop

    def _element_at(self, byte: int) -> int:
        return min(self.numel, max(0, -((self.offset - byte) // self.itemsize)))


Share = Mapping[str, ByteRange]
"""The bytes of each file that one run writes."""


def divide_output(target: Target, of: int, alignment: int = ALIGNMENT) -> list[Share]:
    """Return the shares of `of` runs, which together are the whole output. A share may be empty."""
    sizes = {name: plan.size for name, plan in target.files.items()}
    whole = _not_to_cut(target) if of > 1 else set()
    total = sum(sizes.values())
    found: list[dict[str, ByteRange]] = [{} for _ in range(of)]
    number = before = 0
    for name, size in sizes.items():
        begin = 0
        while number < of - 1:
            wanted = total * (number + 1) // of - before
            cut = _cut(wanted, size, total // of, 0 if name in whole else alignment)
            if cut >= size:
                break
            if cut > begin:
                found[number][name] = ByteRange(begin, cut)
                begin = cut
            number += 1
        found[number][name] = ByteRange(begin, size)
        before += size
    return [dict(each) for each in found]


def _cut(wanted: int, size: int, share: int, alignment: int) -> int:
    """Return the offset for a cut in a file of `size` bytes, near the ideal offset `wanted`. A
    result that is not inside the file means no cut. If `alignment` is 0, no file is cut."""
    if not 0 < wanted < size:
        return wanted
    if not alignment or min(wanted, size - wanted) <= share // _NEAR:
        return 0 if wanted < size - wanted else size
    return min(size, (wanted + alignment // 2) // alignment * alignment)


def _not_to_cut(target: Target) -> set[str]:
    """Return the files with elements that may lie across a multiple of `ALIGNMENT`."""
    return {
        extent.file
        for tensor in target.checkpoint.tensors.values()
        for extent in tensor_extents(tensor)
        if extent.offset % extent.itemsize
    }


def tensor_extents(tensor: Tensor) -> Iterator[Extent]:
    """Yield the ranges of files that hold the elements of a tensor of the target."""
    itemsize = tensor.dtype.itemsize
    if isinstance(tensor.chunks, Ranges):
        for begin, end, file, offset in tensor.chunks.each():
            yield Extent(file, offset, end - begin, itemsize)
        return
    for chunk in tensor.chunks:
        yield Extent(chunk.file, chunk.offset, chunk.box.numel, itemsize)


@dataclass(frozen=True)
class PartPlan:
    """The plan of one part of an output.

    Attributes:
        share: the byte ranges that this part writes.
        shares: the byte ranges of all parts, in the order of their numbers.
        tensor_bytes: the number of tensor bytes in `share` for each file.
        tensors: the tensors with bytes in `share`.
    """

    part: OutputPart
    shares: Sequence[Share]
    tensor_bytes: Mapping[str, int]
    tensors: Mapping[Key, Tensor]

    @property
    def share(self) -> Share:
        return self.shares[self.part.index - 1]

    @property
    def nbytes(self) -> int:
        """The number of bytes that the part writes."""
        return sum(bounds.end - bounds.begin for bounds in self.share.values())


def plan_part(target: Target, part: OutputPart, alignment: int = ALIGNMENT) -> PartPlan:
    """Return the plan of one part of `target`. `alignment` is passed to `divide_output`."""
    cuts = divide_output(target, part.of, alignment)
    return PartPlan(part, cuts, *_bytes_in(target, cuts[part.index - 1]))


def cut_files(target: Target, cuts: Iterable[Share]) -> frozenset[str]:
    """Return the files to which several parts write."""
    return frozenset(
        file
        for share in cuts
        for file, bounds in share.items()
        if bounds != (0, target.files[file].size)
    )


def _bytes_in(target: Target, share: Share) -> tuple[dict[str, int], dict[Key, Tensor]]:
    """Return the number of tensor bytes in `share` for each file, and the tensors with
    bytes there."""
    sizes = dict.fromkeys(share, 0)
    tensors: dict[Key, Tensor] = {}
    for key, tensor in target.checkpoint.tensors.items():
        for extent in tensor_extents(tensor):
            bounds = share.get(extent.file)
            if bounds is None:
                continue
            first, stop = extent.inside(bounds)
            if first < stop:
                sizes[extent.file] += (stop - first) * extent.itemsize
                tensors[key] = tensor
    return sizes, tensors


def clip_copies(copies: Iterable[Copy | RangeCopy], share: Share) -> Iterator[Copy | RangeCopy]:
    """Yield those parts of the copies that fill bytes of `share`."""
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
            yield from _cut_copy(copy, first, stop)


def _cut_copy(copy: Copy | RangeCopy, first: int, stop: int) -> Iterator[Copy | RangeCopy]:
    """Yield copies for the elements [first, stop) of the target chunk that `copy` fills."""
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
            ChunkBox(copy.pieces[position].chunk, common)
            for position, common in index.overlapping(box)
        )
        yield replace(copy, target=Chunk(box, whole.file, offset), pieces=pieces)
        offset += box.numel * copy.target_dtype.itemsize


def clip_plan(plan: FilePlan, bounds: ByteRange) -> FilePlan:
    """Return the part of a file's plan for the bytes `bounds`. Checksums are left out, because they
    may cover bytes that other runs write."""
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
