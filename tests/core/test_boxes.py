from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import partitions, shapes
from zerotools.core.boxes import (
    Box,
    BoxIndex,
    Hole,
    Overlap,
    boxes_of_range,
    contiguous_boxes,
    prove_cover,
    row_major_strides,
)


def cells(box: Box) -> list[tuple[int, ...]]:
    """Every index in the box, in row-major order."""
    return list(product(*(range(a, b) for a, b in zip(box.start, box.stop, strict=True))))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(shapes)
    begin = draw(st.integers(0, prod(shape)))
    return shape, begin, draw(st.integers(begin, prod(shape)))


@given(ranges())
def test_a_flat_range_is_at_most_2n_minus_1_boxes_in_order(
    drawn: tuple[tuple[int, ...], int, int],
) -> None:
    shape, begin, end = drawn
    boxes = boxes_of_range(shape, begin, end)
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert not any(box.is_empty for box in boxes)
    assert [cell for box in boxes for cell in cells(box)] == cells(Box.whole(shape))[begin:end]


@pytest.mark.parametrize("shape", [(4,), (3, 3), (2, 2, 3)])
def test_every_range_of_a_small_tensor_is_its_cells(shape: tuple[int, ...]) -> None:
    """Examples seldom draw one that begins inside a row and ends an element before the next."""
    whole = cells(Box.whole(shape))
    for begin, end in combinations(range(len(whole) + 1), 2):
        boxes = boxes_of_range(shape, begin, end)
        assert [cell for box in boxes for cell in cells(box)] == whole[begin:end]


def test_the_bound_of_2n_minus_1_is_reached() -> None:
    shape = (3, 3, 3)
    assert len(boxes_of_range(shape, 1, 26)) == 5


def test_a_range_outside_the_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"range \[0, 7\) is outside a tensor of 6 elements"):
        boxes_of_range((2, 3), 0, 7)


@given(shapes, st.integers(1, 9))
def test_pieces_are_small_and_follow_one_another(shape: tuple[int, ...], most: int) -> None:
    pieces = list(contiguous_boxes(Box.whole(shape), most))
    assert all(piece.numel <= most for piece in pieces)
    assert [cell for piece in pieces for cell in cells(piece)] == cells(Box.whole(shape))


@given(st.data(), shapes)
def test_a_partition_with_replicas_covers(data: st.DataObject, shape: tuple[int, ...]) -> None:
    boxes = data.draw(partitions(shape))
    assert prove_cover(shape, [*boxes, boxes[0]]) is None


@given(st.data(), shapes)
def test_a_lost_box_is_a_hole_of_its_size(data: st.DataObject, shape: tuple[int, ...]) -> None:
    boxes = data.draw(partitions(shape))
    lost = boxes.pop()
    fault = prove_cover(shape, boxes)
    assert isinstance(fault, Hole)
    assert fault.missing == lost.numel
    assert lost.contains(fault.box)


def test_sizes_that_add_up_prove_nothing() -> None:
    three_rows_and_one_twice = [Box((i, 0), (1, 2)) for i in (0, 1, 2)] + [Box((1, 0), (2, 1))]
    assert isinstance(prove_cover((4, 2), three_rows_and_one_twice), Overlap)


def test_a_box_outside_the_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"box \[3:5\] is outside a tensor of shape \(4,\)"):
        prove_cover((4,), [Box((3,), (2,))])


@given(st.data(), shapes)
def test_the_sweep_finds_what_all_pairs_find(data: st.DataObject, shape: tuple[int, ...]) -> None:
    boxes = data.draw(partitions(shape))
    index = BoxIndex(boxes)
    for box in data.draw(partitions(shape)):
        expected = {(i, b.intersect(box)) for i, b in enumerate(boxes) if b.intersect(box)}
        assert set(index.overlapping(box)) == expected


@pytest.mark.parametrize(
    ("shape", "strides"), [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0), (0, 1))]
)
def test_row_major_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert row_major_strides(shape) == strides
