"""Ranges are the same chunks as their boxes, and the quick proof never says yes to what is not."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layouts import shapes
from zerotools.core.boxes import Box, prove_cover
from zerotools.core.checkpoint import Chunk
from zerotools.core.dtypes import FLOAT32
from zerotools.core.ranges import Range, Ranges


def of(shape: tuple[int, ...], *ranges: Range) -> Ranges:
    return Ranges(FLOAT32, shape, lambda: ranges)


@given(shapes, st.lists(st.integers(0, 60), max_size=4))
def test_cuts_of_a_tensor_cover_it(shape: tuple[int, ...], cuts: list[int]) -> None:
    numel = prod(shape)
    edges = sorted({0, numel, *(cut for cut in cuts if cut < numel)})
    ranges = [Range(a, b, "f", 4 * a) for a, b in pairwise(edges)]
    chunks = of(shape, *ranges)
    assert chunks.cover({"f": 4 * numel})
    assert prove_cover(shape, [chunk.box for chunk in chunks]) is None
    assert len(chunks) == len(list(chunks))
    flat = [(chunk.box.start[0], chunk.box.numel, chunk.offset) for chunk in chunks.flattened()]
    assert flat == [(a, b - a, offset) for a, b, _, offset in ranges]


def test_boxes_lie_one_behind_another() -> None:
    chunks = of((3, 4), Range(2, 9, "f", 100))
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
    assert not of((2, 3), *ranges).cover({"f": 24})


def test_a_file_of_unknown_size_is_not_judged() -> None:
    assert of((6,), Range(0, 6, "elsewhere", 10)).cover({"f": 1})
