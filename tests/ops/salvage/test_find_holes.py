from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import partitions, shapes, slices
from zerotools.core.boxes import Box, boxes_of_range
from zerotools.ops.salvage.find_holes import uncovered_boxes, uncovered_ranges


@given(st.data())
def test_what_boxes_leave_out_is_the_rest_of_them(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = data.draw(partitions(shape))
    kept = [box for box in boxes if data.draw(st.booleans())]
    marks = np.zeros(shape, int)
    for box in (*kept, *uncovered_boxes(shape, kept)):
        marks[slices(box)] += 1
    assert (marks == 1).all()


def test_the_example() -> None:
    kept = [*boxes_of_range((4, 4), 0, 6), *boxes_of_range((4, 4), 12, 16)]
    assert uncovered_boxes((4, 4), kept) == [Box((1, 2), (1, 2)), Box((2, 0), (1, 4))]


def test_equal_rows_are_one_box_and_overlapping_boxes_count_once() -> None:
    columns = Box((0, 0), (6, 2))
    assert uncovered_boxes((6, 4), [columns]) == [Box((0, 2), (6, 2))]
    assert uncovered_boxes((6, 4), [columns, Box((2, 1), (9, 9))]) == [Box((0, 2), (2, 2))]
    assert uncovered_boxes((), []) == [Box((), ())]
    assert uncovered_boxes((), [Box((), ())]) == []
    assert uncovered_boxes((3, 0), []) == []


def test_ranges() -> None:
    assert uncovered_ranges(10, [(4, 6), (0, 2), (5, 7)]) == [(2, 4), (7, 10)]
    assert uncovered_ranges(10, [(0, 10)]) == []
    assert uncovered_ranges(3, []) == [(0, 3)]
