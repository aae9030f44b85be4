from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.boxes import prove_cover
from zerotools.formats.dcp.lay_out_rank_files import SaveItem, assign_shards, shard_box

SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 50))
def test_the_shards_of_all_ranks_cover_a_tensor(shape: tuple[int, ...], ranks: int) -> None:
    boxes = [shard_box(shape, rank, ranks) for rank in range(ranks)]
    assert prove_cover(shape, boxes) is None


def test_101_rows_over_3_ranks() -> None:
    assert [shard_box((101, 7), rank, 3).shape[0] for rank in range(3)] == [34, 34, 33]


@pytest.mark.torch
def test_the_sizes_are_those_of_torch_chunk() -> None:
    import torch

    for rows in range(1, 40):
        for ranks in range(1, 12):
            wanted = [len(part) for part in torch.empty(rows).chunk(ranks)]
            found = [shard_box((rows,), rank, ranks).shape[0] for rank in range(ranks)]
            assert [n for n in found if n] == wanted


@given(
    st.lists(st.tuples(SHAPES | st.just(()) | st.none(), st.booleans()), max_size=8),
    st.integers(1, 6),
)
def test_every_value_is_saved_exactly_once(
    drawn: list[tuple[tuple[int, ...] | None, bool]], ranks: int
) -> None:
    values = [
        SaveItem(f"k{i}", shape, 4 * i, sharded and bool(shape))
        for i, (shape, sharded) in enumerate(drawn)
    ]
    saved = [shard for shards in assign_shards(values, ranks) for shard in shards]
    for value in values:
        boxes = [shard.box for shard in saved if shard.value is value]
        if value.shape is None:
            assert boxes == [None]
        elif value.sharded:
            assert prove_cover(value.shape, [box for box in boxes if box is not None]) is None
            assert len(set(boxes)) == len(boxes)
        else:
            assert [box and box.shape for box in boxes] == [value.shape]


def test_what_is_replicated_goes_to_the_rank_with_least() -> None:
    values = [
        SaveItem("a", (4,), 100, True),
        SaveItem("b", (2,), 60, False),
        SaveItem("c", (2,), 50, False),
    ]
    ranks = assign_shards(values, 2)
    assert [[shard.value.key for shard in shards] for shards in ranks] == [["a"], ["a", "b", "c"]]
