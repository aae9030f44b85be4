"""Place the experts of one rank (a block) in the tensor that stacks all experts of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunksOnDemand, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range, Ranges
from zerotools.formats.deepspeed.schema.expert_parallel import ExpertBlock, StackedExperts


def in_whole(tensor: Tensor, block: ExpertBlock) -> Tensor:
    """Return `tensor`, a block of experts of shape (block.count, ...), as the tensor of all
    experts, of shape (block.total, ...). Only the elements of the block have chunks.
    """
    shape = (block.total, *tensor.shape[1:])
    chunks = tensor.chunks
    if isinstance(chunks, Ranges):
        shift = block.first * prod(shape[1:])

        def moved() -> Iterable[Range]:
            for begin, end, file, offset in chunks.each():
                yield Range(begin + shift, end + shift, file, offset)

        return Tensor(tensor.dtype, shape, Ranges(tensor.dtype, shape, moved))
    return Tensor(
        tensor.dtype,
        shape,
        [
            Chunk(
                Box((chunk.box.start[0] + block.first, *chunk.box.start[1:]), chunk.box.shape),
                chunk.file,
                chunk.offset,
                chunk.strides,
            )
            for chunk in chunks
        ],
    )


def joined_blocks(name: str, parts: Sequence[tuple[ExpertBlock, Tensor]]) -> Tensor:
    """Return the tensor `name` of all experts, joined from blocks that `in_whole` made.

    Raises:
        BadFile: two blocks have different shapes or dtypes.
    """
    ordered = [tensor for _, tensor in sorted(parts, key=lambda part: part[0].first)]
    first = ordered[0]
    for other in ordered:
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise BadFile(
                f"{name} over all experts is {other.dtype} of shape {other.shape} in "
                f"{_file_of(other)}, but {first.dtype} of shape {first.shape} in "
                f"{_file_of(first)}: the files are from two runs; take another checkpoint"
            )
    ranges = [each.chunks for each in ordered if isinstance(each.chunks, Ranges)]
    if len(ranges) == len(ordered):
        every = Ranges(
            first.dtype, first.shape, lambda: chain.from_iterable(each.each() for each in ranges)
        )
        return Tensor(first.dtype, first.shape, every)
    made = ChunksOnDemand(lambda: [chunk for each in ordered for chunk in each.chunks])
    return Tensor(first.dtype, first.shape, made)


def _file_of(tensor: Tensor) -> str:
    return next((chunk.file for chunk in tensor.chunks), "a file that is missing")


def stacked_experts(experts: StackedExperts, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors from expert files, with AutoEP's experts stacked: each weight of a layer
    is one tensor that contains all experts.

    Raises:
        BadFile: experts of one layer have different shapes or dtypes.
    """
    found: dict[str, Tensor] = {}
    parts: dict[str, list[tuple[ExpertBlock, Tensor]]] = {}
    for name, tensor in tensors.items():
        if (of_weight := experts.of_file(name)) is None:
            found[name] = tensor
        else:
            weight, block = of_weight
            parts.setdefault(weight, []).append((block, in_whole(_one(tensor), block)))
    return found | {name: joined_blocks(name, each) for name, each in parts.items()}


def _one(tensor: Tensor) -> Tensor:
    """Return the tensor with an additional first dimension of size 1."""
    chunks = [
        Chunk(
            Box((0, *chunk.box.start), (1, *chunk.box.shape)),
            chunk.file,
            chunk.offset,
            None if chunk.strides is None else (prod(chunk.box.shape), *chunk.strides),
        )
        for chunk in tensor.chunks
    ]
    return Tensor(tensor.dtype, (1, *tensor.shape), chunks)
