"""Rules for the division of a tensor among tensor-parallel ranks, and the position of each shard.

A rule maps blocks of each rank's shard to blocks of the full tensor. A rule comes from the
checkpoint's own records, or from the user; it is never guessed from a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Chunk
from zerotools.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Split:
    """A rule: each rank has a shard of the tensor, cut along dimension `dim`. The shards are in
    rank order.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class Replicated:
    """A rule: each rank has a copy of the full tensor. The copy of the first rank is used."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A rule: several tensors are joined along `dim`, and each of them is split separately over
    the ranks. Examples are a fused QKV, or a gate joined with an up projection.

    `sizes` are their sizes along `dim` in the full tensor; each is a multiple of the number of
    ranks.
    """

    dim: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block and its position: block `shard` of a rank's tensor begins at index `start` of the
    full tensor.
    """

    shard: Box
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExplicitBlocks:
    """An explicit list of blocks for each rank, in a full tensor of `shape`."""

    shape: tuple[int, ...]
    of_rank: tuple[tuple[PlacedBlock, ...], ...]


ShardingRule = Split | Replicated | Fused | ExplicitBlocks


def whole_shape(rule: ShardingRule, shards: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the full tensor, from the shapes of the ranks' shards.

    Raises:
        ValueError: the shards do not fit the rule.
    """
    first = shards[0]
    if isinstance(rule, ExplicitBlocks):
        return rule.shape
    if isinstance(rule, Replicated):
        if any(shape != first for shape in shards):
            raise ValueError(
                f"a replicated tensor must have the same shape on all ranks, but has {first} on "
                "the first and another shape on others"
            )
        return first
    if not 0 <= rule.dim < len(first):
        raise ValueError(f"a tensor of shape {first} has no dimension {rule.dim}")
    others = {(*shape[: rule.dim], *shape[rule.dim + 1 :]) for shape in shards}
    if len({len(shape) for shape in shards}) > 1 or len(others) > 1:
        raise ValueError(
            f"shards of shapes {sorted(set(shards))} cannot be joined along dimension {rule.dim}"
        )
    total = sum(shape[rule.dim] for shape in shards)
    if isinstance(rule, Fused):
        _check_fused(rule, shards, total)
    return (*first[: rule.dim], total, *first[rule.dim + 1 :])


def _check_fused(rule: Fused, shards: Sequence[tuple[int, ...]], total: int) -> None:
    ranks = len(shards)
    if sum(rule.sizes) != total or any(size % ranks for size in rule.sizes):
        raise ValueError(
            f"the sizes {rule.sizes} along dimension {rule.dim} must add up to {total}, and "
            f"each must be a multiple of the {ranks} ranks"
        )


def shard_placements(
    rule: ShardingRule, shards: Sequence[tuple[int, ...]], rank: int
) -> list[PlacedBlock]:
    """Return the blocks of `rank`'s shard with their positions in the full tensor. `shards` are
    the shapes of the shards of all ranks.
    """
    shape = shards[rank]
    if isinstance(rule, ExplicitBlocks):
        return list(rule.of_rank[rank])
    if isinstance(rule, Replicated):
        return [PlacedBlock(Box.whole(shape), (0,) * len(shape))] if rank == 0 else []
    if isinstance(rule, Split):
        before = sum(other[rule.dim] for other in shards[:rank])
        return [_along(shape, rule.dim, 0, shape[rule.dim], before)]
    placed, in_shard, in_whole = [], 0, 0
    for size in rule.sizes:
        width = size // len(shards)
        placed.append(_along(shape, rule.dim, in_shard, width, in_whole + rank * width))
        in_shard += width
        in_whole += size
    return placed


def _along(shape: tuple[int, ...], dim: int, first: int, count: int, start: int) -> PlacedBlock:
    """Return the block of a shard that has `count` indices along `dim`, from `first` on, and that
    begins at index `start` of the full tensor.
    """
    zeros = (0,) * len(shape)
    box = Box((*zeros[:dim], first, *zeros[dim + 1 :]), (*shape[:dim], count, *shape[dim + 1 :]))
    return PlacedBlock(box, (*zeros[:dim], start, *zeros[dim + 1 :]))


def place_chunk(chunk: Chunk, placed: PlacedBlock, dtype: DType) -> Chunk | None:
    """Return the part of `chunk`, a chunk of a shard, that lies in the block `placed`, with its
    position in the full tensor. Return None if no element lies there.
    """
    common = chunk.box.intersect(placed.shard)
    if common is None:
        return None
    inside = common.relative_to(chunk.box).start
    strides = chunk.strides or row_major_strides(chunk.box.shape)
    offset = chunk.offset + dtype.itemsize * sum(
        i * s for i, s in zip(inside, strides, strict=True)
    )
    within = common.relative_to(placed.shard).start
    start = tuple(a + b for a, b in zip(within, placed.start, strict=True))
    return Chunk(Box(start, common.shape), chunk.file, offset, strides)
