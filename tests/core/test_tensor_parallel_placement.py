"""Shards made by numpy, put back by rules: every element in its place, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core import dtypes
from zerotools.core.boxes import Box, prove_cover
from zerotools.core.checkpoint import Chunk
from zerotools.core.tensor_parallel_placement import (
    ExplicitBlocks,
    Fused,
    PlacedBlock,
    Replicated,
    ShardingRule,
    Split,
    place_chunk,
    shard_placements,
    whole_shape,
)
from zerotools.io.numeric.dtype_casts import Array


def values(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


def rebuilt(rule: ShardingRule, shards: list[Array]) -> Array:
    """The whole, from chunks of the shards; each shard is cut in two, to have partial chunks."""
    shapes = [shard.shape for shard in shards]
    shape = whole_shape(rule, shapes)
    whole = np.full(shape, -1, dtype=np.int64)
    boxes = []
    for rank, shard in enumerate(shards):
        flat = shard.ravel()
        half = shard.shape[0] // 2
        for first, count in ((0, half), (half, shard.shape[0] - half)):
            box = Box((first, *(0 for _ in shard.shape[1:])), (count, *shard.shape[1:]))
            offset = 8 * first * int(np.prod(shard.shape[1:]))
            for placed in shard_placements(rule, shapes, rank):
                chunk = place_chunk(Chunk(box, "f", offset), placed, dtypes.INT64)
                if chunk is None or chunk.box.is_empty:
                    continue
                assert chunk.strides is not None
                block = np.ndarray(
                    chunk.box.shape,
                    np.int64,
                    buffer=flat.data,
                    offset=chunk.offset,
                    strides=[8 * s for s in chunk.strides],
                )
                at = tuple(
                    slice(a, b) for a, b in zip(chunk.box.start, chunk.box.stop, strict=True)
                )
                whole[at] = block
                boxes.append(chunk.box)
    assert prove_cover(shape, boxes) is None
    return whole


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1))
def test_split(ranks: int, width: int, other: int, dim: int) -> None:
    whole = values(*((ranks * width, other) if dim == 0 else (other, ranks * width)))
    shards = np.split(whole, ranks, axis=dim)
    assert (rebuilt(Split(dim), shards) == whole).all()


def test_split_into_uneven_shards() -> None:
    whole = values(7, 2)
    assert (rebuilt(Split(0), [whole[:4], whole[4:5], whole[5:]]) == whole).all()


@given(st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 1))
def test_fused(ranks: int, widths: list[int], dim: int) -> None:
    sizes = tuple(ranks * width for width in widths)
    parts = [values(size, 3) + 1000 * i for i, size in enumerate(sizes)]
    if dim:
        parts = [part.T.copy() for part in parts]
    slices = [np.split(part, ranks, axis=dim) for part in parts]
    shards = [np.concatenate([part[rank] for part in slices], axis=dim) for rank in range(ranks)]
    assert (rebuilt(Fused(dim, sizes), shards) == np.concatenate(parts, axis=dim)).all()


def test_replicated_takes_the_first() -> None:
    whole = values(3, 2)
    assert (rebuilt(Replicated(), [whole, whole + 7]) == whole).all()


def test_pieces() -> None:
    whole = values(2, 4)
    of_rank = (
        (PlacedBlock(Box((0, 0), (2, 1)), (0, 3)), PlacedBlock(Box((0, 1), (2, 1)), (0, 0))),
        (PlacedBlock(Box((0, 0), (2, 2)), (0, 1)),),
    )
    shards = [whole[:, [3, 0]].copy(), whole[:, 1:3].copy()]
    assert (rebuilt(ExplicitBlocks((2, 4), of_rank), shards) == whole).all()


@pytest.mark.parametrize(
    ("rule", "shards", "said"),
    [
        (Split(2), [(2, 2)], "has no dimension 2"),
        (Split(0), [(2, 2), (2, 3)], "cannot be joined along dimension 0"),
        (Replicated(), [(2,), (3,)], "a replicated tensor must have the same shape on all ranks"),
        (
            Fused(0, (3, 3)),
            [(3, 1), (3, 1)],
            "must add up to 6, and each must be a multiple of the 2 ranks",
        ),
        (
            Fused(0, (4, 4)),
            [(3, 1), (3, 1)],
            "must add up to 6, and each must be a multiple of the 2 ranks",
        ),
    ],
)
def test_shards_that_do_not_fit(
    rule: ShardingRule, shards: list[tuple[int, ...]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        whole_shape(rule, shards)
