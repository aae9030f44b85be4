"""Fill the holes of weights from other tensors, box by box.

A weight has up to three sources, in this order: its undamaged chunks; the same weight in another
dtype in the same checkpoint (16-bit weights next to masters); another checkpoint. Each source gives
only the elements that the earlier sources lack.

A filled weight may have parts of different dtypes, such as an fp32 master with boxes from bf16
weights. But `execute` expects one dtype for each tensor. So `in_pieces` divides the weight into
several tensors, one for each contiguous box of one dtype in the output. The output file has one
tensor for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.boxes import Box, boxes_of_range
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range, Ranges, ranges_of
from zerotools.core.target import Target
from zerotools.core.tensor_parallel_placement import PlacedBlock, place_chunk
from zerotools.ops.salvage.find_holes import Holes, holes_of


@dataclass(frozen=True)
class Part:
    """The part of a weight that comes from one source.

    `tensor` has the shape of the whole weight, but chunks only for `boxes`. `source` names the
    source; None: the undamaged chunks of the weight itself.
    """

    tensor: Tensor
    boxes: tuple[Box, ...]
    ranges: tuple[tuple[int, int], ...] | None
    source: str | None = None

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass(frozen=True)
class FilledWeight:
    """A weight with its holes filled from other sources.

    `parts` do not overlap. `holes` are the elements that no part has; None if the weight is
    complete.
    """

    key: Key
    parts: tuple[Part, ...]
    holes: Holes | None

    @property
    def fills(self) -> tuple[Part, ...]:
        """The parts that do not come from the weight itself."""
        return tuple(part for part in self.parts if part.source is not None)


def fill_weight(key: Key, own: Tensor, others: Sequence[tuple[str, Tensor]]) -> FilledWeight:
    """Fill the missing elements of `own` from `others`, in order. Each of `others` is the name of a
    source with a tensor of the same shape."""
    holes = holes_of(key, own)
    if holes is None:
        whole = Box.whole(own.shape)
        return FilledWeight(key, (Part(own, (whole,), ((0, own.numel),)),), None)
    parts = [] if holes.is_total else [_own(own, holes)]
    for source, tensor in others:
        if holes is None:
            break
        given = _given(tensor, holes)
        left = holes_of(key, _joined(own, given))
        if left is None or left.elements < holes.elements:
            parts.append(_part(source, given, holes, left))
            own, holes = _joined(own, given), left
    return FilledWeight(key, tuple(parts), holes)


def _own(tensor: Tensor, holes: Holes) -> Part:
    kept = holes_of(holes.key, replace(tensor, chunks=_as_chunks(holes)))
    assert kept is not None, "a part of it is not lost"
    return Part(tensor, kept.boxes, kept.ranges)


def _as_chunks(holes: Holes) -> tuple[Chunk, ...]:
    """Return the holes as chunks, for functions that compute which elements chunks do not cover."""
    return tuple(Chunk(box, "", 0) for box in holes.boxes)


def _given(tensor: Tensor, holes: Holes) -> Tensor:
    """Return `tensor` with only the elements that lie in `holes`."""
    if holes.is_total:
        return tensor
    ranges = ranges_of(tensor)
    if ranges is not None and holes.ranges is not None:
        cut = list(_cut(ranges, holes.ranges, tensor.dtype.itemsize))
        return replace(tensor, chunks=Ranges(tensor.dtype, tensor.shape, lambda: cut))
    placed = [PlacedBlock(box, box.start) for box in holes.boxes]
    chunks = [place_chunk(c, block, tensor.dtype) for block in placed for c in tensor.chunks]
    return replace(tensor, chunks=tuple(chunk for chunk in chunks if chunk is not None))


def _cut(
    ranges: Sequence[Range], wanted: Sequence[tuple[int, int]], itemsize: int
) -> Iterator[Range]:
    for begin, end in wanted:
        for first, stop, file, offset in ranges:
            low, high = max(begin, first), min(end, stop)
            if low < high:
                yield Range(low, high, file, offset + (low - first) * itemsize)


def _part(source: str, given: Tensor, before: Holes, after: Holes | None) -> Part:
    """Return the part of a weight that `given` fills, with the holes `before` and `after` this
    step."""
    if after is None:
        return Part(given, before.boxes, before.ranges, source)
    rest = holes_of(before.key, given)
    assert rest is not None, "it does not have all"
    has = holes_of(before.key, replace(given, chunks=_as_chunks(rest)))
    assert has is not None, "it has something"
    return Part(given, has.boxes, has.ranges, source)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    ranges, more = ranges_of(one), ranges_of(other)
    if ranges is not None and more is not None:
        both = sorted([*ranges, *more])
        return replace(one, chunks=Ranges(one.dtype, one.shape, lambda: both))
    return replace(one, chunks=(*one.chunks, *other.chunks))


def joined_parts(parts: Sequence[Part]) -> Tensor:
    """Return one tensor that consists of all `parts`, which have the same dtype."""
    whole = parts[0].tensor
    for part in parts[1:]:
        whole = _joined(whole, part.tensor)
    return whole


def with_absolute_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with absolute file names, so that its tensors can be used with those of
    another checkpoint."""
    root = checkpoint.root.absolute()
    tensors = {key: _moved(tensor, root) for key, tensor in checkpoint.tensors.items()}
    files = {str(root / name): size for name, size in checkpoint.files.items()}
    return replace(checkpoint, tensors=tensors, files=files)


def _moved(tensor: Tensor, root: Path) -> Tensor:
    ranges = ranges_of(tensor)
    if ranges is not None:
        moved = [each._replace(file=str(root / each.file)) for each in ranges]
        return replace(tensor, chunks=Ranges(tensor.dtype, tensor.shape, lambda: moved))
    chunks = tuple(replace(chunk, file=str(root / chunk.file)) for chunk in tensor.chunks)
    return replace(tensor, chunks=chunks)


def contiguous_parts(shape: tuple[int, ...], part: Part) -> Iterator[tuple[Box, int]]:
    """Divide a part into boxes that are contiguous in a row-major tensor of `shape`. Yield each box
    with the index of its first element in that tensor."""
    if part.ranges is not None:
        for begin, end in part.ranges:
            at = begin
            for box in boxes_of_range(shape, begin, end):
                yield box, at
                at += box.numel
        return
    for box in part.boxes:
        yield from _rows(shape, box)


def _rows(shape: tuple[int, ...], box: Box) -> Iterator[tuple[Box, int]]:
    """Do the work of `contiguous_parts` for one box."""
    full = len(shape)
    while full and box.shape[full - 1] == shape[full - 1]:
        full -= 1
    if full <= 1:
        yield box, _first(shape, box)
        return
    inner = Box(box.start[1:], box.shape[1:])
    for row in range(box.start[0], box.stop[0]):
        for below, _ in _rows(shape[1:], inner):
            whole = Box((row, *below.start), (1, *below.shape))
            yield whole, _first(shape, whole)


def _first(shape: tuple[int, ...], box: Box) -> int:
    at = 0
    for start, size in zip(box.start, shape, strict=True):
        at = at * size + start
    return at


def in_pieces(
    source: Checkpoint, target: Target, mixed: Mapping[Key, FilledWeight]
) -> tuple[Checkpoint, Target]:
    """Return source and target with each tensor in `mixed` divided into pieces. A piece is a tensor
    of one dtype that is contiguous in the output.

    `Target.compared` divides the tensors in the same way when the output is read back.

    Raises:
        BadFile: another tensor already has the name of a piece.
    """
    if not mixed:
        return source, target
    ours = {key: tensor for key, tensor in source.tensors.items() if key not in mixed}
    theirs = {key: t for key, t in target.checkpoint.tensors.items() if key not in mixed}
    pieces: dict[Key, list[Key]] = {}
    for key, weight in mixed.items():
        whole = target.checkpoint.tensors[key]
        for part in weight.parts:
            for piece, from_source, in_target in _pieces(key, whole, part):
                if piece in ours or piece in theirs:
                    raise BadFile(
                        f"{source.origin.path} has a tensor {piece}, but salvage needs this name "
                        "itself; rename the tensor"
                    )
                ours[piece], theirs[piece] = from_source, in_target
                pieces.setdefault(key, []).append(piece)

    def compared(found: Checkpoint) -> Mapping[Key, Tensor]:
        """Return the tensors that were read back, with each divided weight replaced by its pieces.
        A weight at another position than planned stays whole."""
        read = dict(found.tensors)
        for key, parts in pieces.items():
            there = read.get(Key(key.name, "param"))
            if there is not None and _is_same(there, target.checkpoint.tensors[key]):
                del read[Key(key.name, "param")]
                read |= {piece: theirs[piece] for piece in parts}
        return read

    laid_out = replace(target.checkpoint, tensors=theirs)
    return replace(source, tensors=ours), replace(target, checkpoint=laid_out, compared=compared)


def _pieces(key: Key, whole: Tensor, part: Part) -> Iterator[tuple[Key, Tensor, Tensor]]:
    """Yield each piece of a part: its key, its tensor in the source, and its tensor in the
    target."""
    (chunk,) = whole.chunks
    for box, first in contiguous_parts(whole.shape, part):
        block = PlacedBlock(box, (0,) * len(box.shape))
        found = (place_chunk(each, block, part.dtype) for each in part.tensor.chunks)
        chunks = tuple(each for each in found if each is not None)
        offset = chunk.offset + first * whole.dtype.itemsize
        target = Chunk(Box.whole(box.shape), chunk.file, offset)
        yield (
            Key(f"{key.name}{box}", key.role),
            Tensor(part.dtype, box.shape, chunks),
            Tensor(whole.dtype, box.shape, (target,)),
        )


def _is_same(found: Tensor, planned: Tensor) -> bool:
    """Return whether a tensor that was read back has its planned dtype, shape and position."""
    facts = [(t.dtype, t.shape, [(c.file, c.offset) for c in t.chunks]) for t in (found, planned)]
    return facts[0] == facts[1]
