"""The central algorithm: match source bytes to target chunks, and prove that all target bytes are
filled.

For each tensor of the target, in the target's order, it proves that the source's chunks cover the
tensor exactly and lie inside their files. It proves the same for the target's chunks, and then
finds the source of each target chunk. Because both covers are exact, every target element has
exactly one source, whatever the two layouts are.

If all chunks of source and target are ranges of the flattened tensor, as in all ZeRO stages and
FSDP2, one pass over both lists proves the covers and finds the sources. Otherwise boxes are
intersected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerotools.core.boxes import Box, BoxIndex, Hole, Overlap, prove_cover
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunkBox, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest, Incomplete
from zerotools.core.flat_ranges import Range, chunk_locations, covering_ranges, match_ranges
from zerotools.core.scaled_cast import ScaledCast


@dataclass(frozen=True, slots=True)
class ScaledSource:
    """A quantised weight: the computation of its elements, and the chunks that cover each of its
    inputs."""

    tensor: ScaledCast
    inputs: Mapping[str, tuple[Chunk, ...]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that fills one chunk of the target.

    The values come from `pieces`, which are parts of source chunks that do not overlap and together
    cover the target chunk. Or `scaled` computes the values.
    """

    key: Key
    target: Chunk
    source_dtype: DType
    target_dtype: DType
    pieces: tuple[ChunkBox, ...]
    scaled: ScaledSource | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes to write."""
        return self.target.box.numel * self.target_dtype.itemsize


class RangeCopy(NamedTuple):
    """A copy that fills one range of a flattened target tensor. `pieces` are consecutive source
    ranges that cover it."""

    key: Key
    target: Range
    source_dtype: DType
    target_dtype: DType
    pieces: tuple[Range, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes to write."""
        return (self.target.end - self.target.begin) * self.target_dtype.itemsize


def plan(source: Checkpoint, target: Checkpoint) -> Iterator[Copy | RangeCopy]:
    """Yield the copies that fill `target` with the values of `source`, tensor by tensor.

    Raises:
        BadRequest: the source lacks a tensor of the target, or has it in another shape.
        BadFile: the source has a hole, an overlap, or a chunk outside its file.
    """
    for key, target_tensor in target.tensors.items():
        tensor = _find(source, key, target_tensor)
        goal = prove_target(key, target_tensor, target)
        if isinstance(tensor, ScaledCast):
            yield from _scaled_copies(key, tensor, source, target_tensor)
            continue
        ranges = None if goal is None else covering_ranges(tensor, source.files)
        if goal is None or ranges is None:
            yield from _box_copies(key, tensor, source, target_tensor)
            continue
        for place, pieces in match_ranges(ranges, goal, tensor.dtype.itemsize):
            yield RangeCopy(key, place, tensor.dtype, target_tensor.dtype, pieces)


def prove_plan(source: Checkpoint, target: Checkpoint) -> int:
    """Check that `plan` would succeed, without making copies. Return the number of copies.

    Raises:
        As `plan`.
    """
    copies = 0
    for key, target_tensor in target.tensors.items():
        prove_source(key, _find(source, key, target_tensor), source)
        goal = prove_target(key, target_tensor, target)
        copies += len(target_tensor.chunks if goal is None else goal)
    return copies


def _find(source: Checkpoint, key: Key, target_tensor: Tensor) -> Tensor:
    tensor = source.tensors.get(key)
    if tensor is None:
        raise BadRequest(
            f"{source.origin.path} has no tensor {key}, which the output needs; use another "
            "checkpoint"
        )
    if tensor.shape != target_tensor.shape:
        raise BadRequest(
            f"{key} has shape {tensor.shape} in {source.origin.path} and {target_tensor.shape} in "
            "the output; use another checkpoint"
        )
    return tensor


def _box_copies(
    key: Key, tensor: Tensor, source: Checkpoint, target_tensor: Tensor
) -> Iterator[Copy]:
    available = distinct_chunks(key, tensor, source)
    index = BoxIndex([chunk.box for chunk in available])
    for chunk in target_tensor.chunks:
        if chunk.box.is_empty:
            continue
        pieces = tuple(
            ChunkBox(available[position], common)
            for position, common in index.overlapping(chunk.box)
        )
        yield Copy(key, chunk, tensor.dtype, target_tensor.dtype, pieces)


def _scaled_copies(
    key: Key, tensor: ScaledCast, source: Checkpoint, target_tensor: Tensor
) -> Iterator[Copy]:
    scaled = ScaledSource(tensor, _prove_scaled(key, tensor, source))
    for chunk in target_tensor.chunks:
        if not chunk.box.is_empty:
            yield Copy(key, chunk, tensor.dtype, target_tensor.dtype, (), scaled)


def _prove_scaled(key: Key, tensor: ScaledCast, source: Checkpoint) -> dict[str, tuple[Chunk, ...]]:
    """Return the chunks of each input of a quantised weight. Check that the chunks cover the input,
    and that the input has the shape that the weight needs.

    Raises:
        Incomplete, BadFile: as `distinct_chunks`; or an input has another shape than the weight
            needs.
    """
    found = {}
    needed = {} if tensor.numel == 0 else tensor.scheme.needs(Box.whole(tensor.shape))
    for name, box in needed.items():
        part = tensor.inputs[name]
        if box != Box.whole(part.shape):
            raise BadFile(
                f"{source.origin.path}: the {name} of {key} have shape {list(part.shape)}, but "
                f"should have {list(box.shape)}, because {key} has shape {list(tensor.shape)}; use "
                "another checkpoint"
            )
        found[name] = tuple(distinct_chunks(key, part, source))
    return found


def prove_source(key: Key, tensor: Tensor, source: Checkpoint) -> int:
    """Check that the chunks cover the tensor exactly, and lie inside their files. Return the number
    of elements that files store for the tensor (each replica counts), or for a computed weight its
    number of elements.

    Raises:
        Incomplete: there is a hole, or a chunk ends after the end of its file.
        BadFile: chunks overlap, or a chunk is outside the tensor.
    """
    if isinstance(tensor, ScaledCast):
        _prove_scaled(key, tensor, source)
        return tensor.numel
    if covering_ranges(tensor, source.files) is not None:
        return tensor.numel
    distinct_chunks(key, tensor, source)
    return stored_elements(tensor)


def stored_elements(tensor: Tensor) -> int:
    """Return the number of elements that files store for a tensor. Every replica of an element
    counts."""
    return sum(numel for _, numel in chunk_locations(tensor))


def distinct_chunks(key: Key, tensor: Tensor, source: Checkpoint) -> list[Chunk]:
    """Return one chunk for each distinct box. Check that these chunks cover the tensor and lie
    inside their files.

    Raises:
        Incomplete: there is a hole, or a chunk ends after the end of its file.
        BadFile: chunks overlap, or a chunk is outside the tensor.
    """
    by_box: dict[Box, Chunk] = {}
    for chunk in tensor.chunks:
        if not chunk.box.is_empty:
            by_box.setdefault(chunk.box, chunk)
            _check_inside_file(key, chunk, tensor.dtype, source)
    try:
        fault = prove_cover(tensor.shape, by_box)
    except ValueError as error:
        raise BadFile(f"{source.origin.path}: {key}: {error}") from None
    if isinstance(fault, Overlap):
        raise BadFile(
            f"{source.origin.path}: {key}: chunk {fault.first} in {by_box[fault.first].file} "
            f"overlaps chunk {fault.second} in {by_box[fault.second].file}; use another checkpoint"
        )
    if isinstance(fault, Hole):
        raise Incomplete(_hole_message(key, tensor, fault, source))
    return list(by_box.values())


def _hole_message(key: Key, tensor: Tensor, hole: Hole, source: Checkpoint) -> str:
    message = (
        f"{source.origin.path}: {key} is incomplete: {hole.missing} of {tensor.numel} elements "
        f"are in no file, the first of them in {hole.box}"
    )
    blamed = [problem.message for problem in source.problems if problem.file]
    return f"{message} ({blamed[0]})" if blamed else message


def _check_inside_file(key: Key, chunk: Chunk, dtype: DType, source: Checkpoint) -> None:
    size = source.files.get(chunk.file)
    end = chunk.offset + chunk.extent(dtype)
    if size is None:
        raise Incomplete(
            f"{source.root / chunk.file} is missing, but holds {key} {chunk.box}; copy or download "
            "it again"
        )
    if end > size:
        raise Incomplete(
            f"{source.root / chunk.file} is truncated: {key} {chunk.box} ends at byte {end}, but "
            f"the file has {size} bytes; copy or download it again"
        )


def prove_target(key: Key, target_tensor: Tensor, target: Checkpoint) -> list[Range] | None:
    """Check the layout that a writer made for a tensor, before any byte is written. Return the
    chunks as ranges if all of them are ranges, else None.

    Raises:
        AssertionError: the layout has holes, overlaps or gaps. This is a defect of zerotools.
    """
    ranges = covering_ranges(target_tensor, target.files)
    if ranges is None:
        boxes: Sequence[Box] = [chunk.box for chunk in target_tensor.chunks]
        fault = prove_cover(target_tensor.shape, boxes)
        assert fault is None, f"{key} is laid out with {fault}"
        assert all(chunk.is_contiguous for chunk in target_tensor.chunks), (
            f"{key} is laid out with gaps"
        )
    return ranges
