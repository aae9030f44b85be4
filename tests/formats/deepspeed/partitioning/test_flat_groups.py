"""The order of parameters, and the sub-groups, of any number of ranks."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import shapes
from zerotools.formats.deepspeed.partitioning.flat_groups import (
    flat_order,
    paddings_of,
    round_robin_order,
)
from zerotools.formats.deepspeed.partitioning.flat_layout import (
    FlatLayout,
    partition_contents,
    partition_size,
)
from zerotools.formats.deepspeed.writing.target_layout import split_sub_groups

named_shapes = st.lists(shapes, min_size=1, max_size=6).map(
    lambda drawn: {f"p{i}": shape for i, shape in enumerate(drawn)}
)


def test_round_robin_deals_parameters_to_ranks_in_turn() -> None:
    assert round_robin_order(7, 3) == [0, 3, 6, 1, 4, 2, 5]
    assert round_robin_order(2, 4) == [0, 1]
    assert flat_order(list("abcde"), 2, round_robin=True) == list("acebd")
    assert flat_order(list("abcde"), 2, round_robin=False) == list("abcde")


@given(named_shapes, st.integers(1, 8))
def test_aligned_parameters_begin_at_multiples(
    drawn: dict[str, tuple[int, ...]], alignment: int
) -> None:
    paddings = paddings_of(drawn, alignment)
    assert len(paddings) == len(drawn)
    assert paddings[-1] == 0
    geometry = FlatLayout(drawn, paddings, 1, None)
    whole = FlatLayout(drawn, paddings, 1, partition_size(geometry.total, 1))
    assert all(offset % alignment == 0 for _, _, offset in whole.offsets())


@given(named_shapes, st.integers(1, 5), st.booleans(), st.integers(1, 4))
def test_ranges_and_gaps_fill_every_partition(
    drawn: dict[str, tuple[int, ...]], ranks: int, is_stage_3: bool, alignment: int
) -> None:
    paddings = () if is_stage_3 else paddings_of(drawn, alignment)
    geometry = FlatLayout(drawn, paddings, ranks, None)
    if not is_stage_3:
        geometry = FlatLayout(drawn, paddings, ranks, partition_size(geometry.total, ranks))
    count = 0
    for content in partition_contents(geometry):
        runs = sorted([*((at, n) for _, at, n in content.parts), *content.gaps])
        assert [at for at, _ in runs] == [sum(n for _, n in runs[:i]) for i in range(len(runs))]
        assert sum(n for _, n in runs) == geometry.partition_numel
        count += sum(n for _, _, n in content.parts)
    assert count == sum(prod(shape) for shape in drawn.values())


def test_a_sub_group_is_closed_when_it_has_as_many_elements_as_it_may() -> None:
    drawn: dict[str, tuple[int, ...]] = {"a": (33,), "b": (21,), "c": (21,)}
    assert [list(part) for part in split_sub_groups(drawn, 1, 40)] == [["a", "b"], ["c"]]
    assert [list(part) for part in split_sub_groups(drawn, 1, 75)] == [["a", "b", "c"]]
    assert [list(part) for part in split_sub_groups(drawn, 2, 1)] == [["a"], ["b"], ["c"]]
    assert split_sub_groups({}, 2, 1) == []
