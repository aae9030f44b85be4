"""Ranges are the same chunks as their boxes, and the quick proof never says yes to what is not."""

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import layouts, partitions, place, shapes, slices
from zerotools.core.boxes import Box, prove_cover
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.flat_ranges import (
    Range,
    Ranges,
    chunk_locations,
    covering_ranges,
    match_ranges,
    ranges_of,
)


def of(shape: tuple[int, ...], *ranges: Range) -> Tensor:
    return Tensor(FLOAT32, shape, Ranges(FLOAT32, shape, lambda: ranges))


def cuts(numel: int) -> st.SearchStrategy[list[Range]]:
    """Ranges that cover `numel` elements, each behind another in one file."""
    return st.sets(st.integers(0, numel), max_size=4).map(
        lambda at: [Range(a, b, "f", 4 * a) for a, b in pairwise(sorted({0, numel} | at))]
    )


@given(st.data())
def test_cuts_of_a_tensor_cover_it(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    ranges = data.draw(cuts(prod(shape)))
    tensor = of(shape, *ranges)
    assert covering_ranges(tensor, {"f": tensor.nbytes}) == ranges
    assert prove_cover(shape, [chunk.box for chunk in tensor.chunks]) is None
    assert len(tensor.chunks) == len(list(tensor.chunks))
    assert list(chunk_locations(tensor)) == [("f", end - begin) for begin, end, _, _ in ranges]


@given(st.data())
def test_boxes_are_flattened_where_each_is_a_range(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    chunks, _ = place(data.draw(layouts(shape)), FLOAT32)
    numbers = np.arange(prod(shape)).reshape(shape)
    inside = [numbers[slices(chunk.box)].reshape(-1).tolist() for chunk in chunks]
    wanted = sorted(
        Range(own[0], own[-1] + 1, chunk.file, chunk.offset)
        for own, chunk in zip(inside, chunks, strict=True)
        if chunk.is_contiguous and own == list(range(own[0], own[-1] + 1))
    )
    found = ranges_of(Tensor(FLOAT32, shape, chunks))
    assert found == (wanted if len(wanted) == len(chunks) else None)


@given(st.data())
def test_a_match_takes_each_element_from_where_it_lies(data: st.DataObject) -> None:
    numel = data.draw(st.integers(1, 40))
    sources = [Range(a, b, f"s{a}", 7) for a, b, _, _ in data.draw(cuts(numel))]
    targets = data.draw(cuts(numel))
    found = {}
    for target, pieces in match_ranges(sources, targets, 4):
        assert [target.begin, *(piece.end for piece in pieces)] == [
            *(piece.begin for piece in pieces),
            target.end,
        ]
        for begin, end, file, offset in pieces:
            found |= {i: (file, offset + 4 * (i - begin)) for i in range(begin, end)}
    assert [target for target, _ in match_ranges(sources, targets, 4)] == targets
    lying = {i: (s.file, s.offset + 4 * (i - s.begin)) for s in sources for i in range(*s[:2])}
    assert found == lying


@given(st.data())
def test_what_boxes_do_not_cover_ranges_do_not(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = data.draw(partitions(shape))
    kept = data.draw(st.lists(st.sampled_from(boxes), max_size=len(boxes)))
    tensor = Tensor(FLOAT32, shape, [Chunk(box, "f", 0) for box in kept])
    if covering_ranges(tensor, None) is not None:
        assert prove_cover(shape, kept) is None


def test_boxes_lie_one_behind_another() -> None:
    chunks = of((3, 4), Range(2, 9, "f", 100)).chunks
    assert list(chunks) == [
        Chunk(Box((0, 2), (1, 2)), "f", 100),
        Chunk(Box((1, 0), (1, 4)), "f", 108),
        Chunk(Box((2, 0), (1, 1)), "f", 124),
    ]
    assert chunks[-1].offset == 124


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [Range(0, 5, "f", 0)],
        [Range(1, 6, "f", 0)],
        [Range(0, 2, "f", 0), Range(3, 6, "f", 12)],
        [Range(0, 4, "f", 0), Range(3, 6, "f", 12)],
        [Range(0, 7, "f", 0)],
        [Range(0, 6, "f", 1)],
    ],
    ids=["nothing", "short", "late", "hole", "overlap", "beyond", "outside its file"],
)
def test_what_does_not_cover(ranges: list[Range]) -> None:
    assert covering_ranges(of((2, 3), *ranges), {"f": 24}) is None


def test_a_file_that_is_not_listed_covers_nothing() -> None:
    tensor = of((6,), Range(0, 6, "elsewhere", 10))
    assert covering_ranges(tensor, {"f": 1}) is None
    assert covering_ranges(tensor, None) is not None


@pytest.mark.parametrize(
    "box", [Box((0, 0, 0), (1, 2, 3)), Box((1, 0), (2, 3)), Box((-1, 0), (1, 3))]
)
def test_a_box_outside_its_tensor_is_no_range(box: Box) -> None:
    assert ranges_of(Tensor(FLOAT32, (2, 3), [Chunk(box, "f", 0)])) is None
