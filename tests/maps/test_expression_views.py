"""Each word of the map language against numpy, and what its sizes may be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.maps.viewed import filled, numbered, viewed
from tests.matrices import examples
from zerotools.core.boxes import prove_cover
from zerotools.core.errors import BadRequest
from zerotools.maps.expression_views import BoundOperation, BoundTensor, inverses_of, view_of


def bound(word: str, sizes: tuple[int, ...], *shapes: tuple[int, ...]) -> BoundOperation:
    parts = tuple(BoundTensor(number, shape) for number, shape in enumerate(shapes))
    return BoundOperation(word, parts, sizes)


def test_each_word_is_what_numpy_makes() -> None:
    a, b = numbered((4, 6), (4, 6))
    halves = a.reshape(2, 2, 1, 6)
    groups = [each.reshape(2, 2, 6) for each in (a, b)]
    for word, sizes, arrays, wanted in (
        ("concat", (1,), [a, b], np.concatenate([a, b], 1)),
        ("part", (0, 1, 3), [a], a[1:3]),
        ("every", (1, 1, 2), [a], a[:, 1::2]),
        ("stack", (), [a, b], np.stack([a, b])),
        ("item", (2,), [a], a[2]),
        ("transpose", (0, 1), [a], a.T),
        ("pairs", (2,), [a], halves.transpose(0, 2, 1, 3).reshape(4, 6)),
        ("interleave", (2,), [a, b], np.concatenate(groups, 1).reshape(8, 6)),
        ("pad", (6,), [a], a[[0, 1, 2, 3, 3, 3]]),
    ):
        made = view_of(bound(word, sizes, *(each.shape for each in arrays)))
        assert (viewed(made, arrays) == wanted).all(), word


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_halves_undo_pairs_and_every_inverse_covers(heads: int, half: int, columns: int) -> None:
    shape = (heads * 2 * half, columns)
    pairs = bound("pairs", (heads,), shape)
    both = view_of(BoundOperation("halves", (pairs,), (heads,)))
    (array,) = numbered(shape)
    assert (viewed(both, [array]) == array).all()
    for word in ("pairs", "halves"):
        made = bound(word, (heads,), shape)
        (pieces,) = inverses_of(made)
        assert prove_cover(shape, [piece.box for piece in pieces]) is None
        assert (filled(shape, pieces, [viewed(view_of(made), [array])]) == array).all()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_query_groups_come_apart_again(groups: int, heads: int, size: int) -> None:
    shapes = [(groups * heads * size, 2), (groups * size, 2), (groups * size, 2)]
    made = bound("interleave", (groups,), *shapes)
    arrays = numbered(*shapes)
    joined = viewed(view_of(made), arrays)
    assert joined.reshape(groups, heads + 2, size, 2)[0, heads, 0, 0] == arrays[1][0, 0]
    for array, pieces in zip(arrays, inverses_of(made), strict=True):
        assert (filled(array.shape, pieces, [joined]) == array).all()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (bound("pairs", (3,), (8, 2)), "8 rows into 3 equal blocks of an even number"),
        (bound("pairs", (0,), (8, 2)), "8 rows into 0 equal blocks"),
        (bound("interleave", (3,), (8, 2), (9, 2)), "8 is not a multiple of 3"),
        (
            bound("interleave", (1,), (8, 2), (8, 3)),
            r"cannot join tensors of the shapes \[8, 2\] and \[8, 3\]",
        ),
        (
            bound("concat", (0,), (8, 2), (8, 3)),
            r"cannot join tensors of the shapes \[8, 2\] and \[8, 3\]",
        ),
        (bound("concat", (2,), (8, 2), (8, 2)), "uses dimension 2"),
        (bound("stack", (), (8, 2), (8, 3)), "cannot join"),
        (
            bound("part", (0, 2, 9), (8, 2)),
            r"part\(...\) takes \[2, 9\) of dimension 0, but this dimension has length 8",
        ),
        (bound("every", (0, 2, 2), (8, 2)), "begins at 2 with a step of 2"),
        (bound("item", (8,), (8, 2)), r"item\(...\) takes index 8, but there are only 8 indices"),
        (bound("transpose", (0, 2), (8, 2)), "uses dimension 2"),
        (bound("pairs", (1,), ()), "uses dimension 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(made: BoundOperation, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        view_of(made)
