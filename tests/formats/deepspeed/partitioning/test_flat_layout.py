"""The drawings at the heads of `flat_layout` and `sub_groups` are what the code computes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from zerotools.core.dtypes import FLOAT32
from zerotools.formats.deepspeed.partitioning import flat_layout
from zerotools.formats.deepspeed.partitioning.flat_layout import (
    FlatLayout,
    partition_contents,
    partition_size,
)
from zerotools.formats.deepspeed.partitioning.parameter_order import (
    alignment_of,
    flat_order,
    paddings_of,
)
from zerotools.formats.deepspeed.schema.flat_buffer import RankRange
from zerotools.formats.deepspeed.writing import sub_groups

SHAPES = {"w": (2, 3), "b": (3,), "v": (5,)}
PADDING = ".."


def drawn(layout: FlatLayout) -> str:
    """The partitions of all ranks, an element a cell."""
    ranks = [[PADDING] * layout.partition_numel for _ in range(layout.dp_size)]
    for name, shape, offset in layout.offsets():
        for rank, at, begin, end in layout.rank_ranges(shape, offset):
            ranks[rank][at : at + end - begin] = [f"{name}{i}" for i in range(begin, end)]
    for cells, content in zip(ranks, partition_contents(layout), strict=True):
        gaps = [i for start, count in content.gaps for i in range(start, start + count)]
        assert [i for i, cell in enumerate(cells) if cell == PADDING] == gaps
    return " | ".join(" ".join(cells) for cells in ranks)


def zero12(shapes: Mapping[str, tuple[int, ...]], paddings: tuple[int, ...] = ()) -> FlatLayout:
    total = FlatLayout(dict(shapes), paddings, 2, None).total
    return FlatLayout(dict(shapes), paddings, 2, partition_size(total, 2))


def in_round_robin() -> dict[str, tuple[int, ...]]:
    return {name: SHAPES[name] for name in flat_order(list(SHAPES), 2, round_robin=True)}


def aligned() -> FlatLayout:
    return zero12(SHAPES, tuple(paddings_of(SHAPES, alignment_of(FLOAT32))))


@pytest.mark.parametrize(
    ("layout", "numel"),
    [
        (zero12(SHAPES), 8),
        (zero12(in_round_robin()), 8),
        (aligned(), 10),
        (FlatLayout(SHAPES, (), 2, None), 8),
    ],
    ids=["stages 1 and 2", "round robin", "aligned", "stage 3"],
)
def test_the_drawing_of_a_group_is_true(layout: FlatLayout, numel: int) -> None:
    lines = [line.strip() for line in str(flat_layout.__doc__).splitlines()]
    assert layout.partition_numel == numel
    assert drawn(layout) in lines


def test_b_lies_on_both_sides_of_the_border() -> None:
    layout = zero12(SHAPES)
    offset = {name: offset for name, _, offset in layout.offsets()}["b"]
    assert list(layout.rank_ranges((3,), offset)) == [RankRange(0, 6, 0, 2), RankRange(1, 0, 2, 3)]


@pytest.mark.parametrize(("ranks", "size"), [(2, 5), (3, 5)])
def test_the_drawing_of_sub_groups_is_true(ranks: int, size: int) -> None:
    lines = [line.strip() for line in str(sub_groups.__doc__).splitlines()]
    for number, shapes in enumerate(sub_groups.split_sub_groups(SHAPES, ranks, size)):
        layout = FlatLayout(shapes, (), ranks, None)
        assert f"sub-group {number}    {drawn(layout)}" in lines


def test_a_large_size_makes_one_sub_group() -> None:
    counts = {size: len(sub_groups.split_sub_groups(SHAPES, 2, size)) for size in (5, 6, 7, 8)}
    assert counts == {5: 2, 6: 1, 7: 1, 8: 1}
