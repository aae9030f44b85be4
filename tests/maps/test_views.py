"""Views against numpy, and their inverses against the arrays that they were made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.maps.viewed import filled, made_views, numbered, viewed
from tests.matrices import examples
from zerotools.core.boxes import prove_cover
from zerotools.core.errors import Unsupported
from zerotools.maps.expression_views import BoundOperation, BoundTensor, view_of
from zerotools.maps.views import (
    TensorView,
    View,
    concatenated,
    indexed_view,
    inverse_pieces,
    narrowed_view,
    padded_view,
    stacked_view,
    transposed_view,
    view_of_rows,
    whole_view,
)


def test_joins_cuts_and_stacks_as_numpy_does() -> None:
    a, b = numbered((3, 4), (2, 4))
    both = concatenated([whole_view(0, a.shape), whole_view(1, b.shape)], 0)
    assert (viewed(both, [a, b]) == np.concatenate([a, b])).all()
    assert (viewed(narrowed_view(both, 0, 2, 2), [a, b]) == np.concatenate([a, b])[2:4]).all()
    assert (
        viewed(narrowed_view(both, 1, 1, 2, 2), [a, b]) == np.concatenate([a, b])[:, 1::2]
    ).all()
    pile = stacked_view([whole_view(0, a.shape), whole_view(0, a.shape)])
    assert (viewed(pile, [a]) == np.stack([a, a])).all()
    assert (viewed(indexed_view(pile, 1), [a]) == a).all()
    assert (viewed(transposed_view(pile, 0, 2), [a]) == np.stack([a, a]).transpose(2, 1, 0)).all()


def test_padding_repeats_the_last_row_and_is_not_inverted() -> None:
    (a,) = numbered((3, 2))
    view = padded_view(whole_view(0, a.shape), 5)
    assert (viewed(view, [a]) == a[[0, 1, 2, 2, 2]]).all()
    (pieces,) = inverse_pieces(view, [2])
    assert (filled(a.shape, pieces, [viewed(view, [a])]) == a).all()
    assert padded_view(view, 5) is view


def test_the_rows_of_rope_are_as_few_pieces_as_can_be() -> None:
    """Eight rows of two heads: pairs of rows one way, and halves of heads the other."""
    rows = whole_view(0, (8, 3))
    view = concatenated(
        [narrowed_view(rows, 0, 4 * head + i, 2, 2) for head in range(2) for i in range(2)], 0
    )
    assert [piece.box.shape for piece in view.pieces] == [(2, 3)] * 4
    (pieces,) = inverse_pieces(view, [2])
    assert sorted((piece.box.start[0], piece.steps[0]) for piece in pieces) == [
        (0, 2), (2, 2), (4, 2), (6, 2),
    ]  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(made_views())
def test_a_chain_is_what_numpy_makes_and_its_inverse_gives_back_every_source(
    made: tuple[View, list[tuple[int, ...]], np.ndarray],
) -> None:
    view, shapes, array = made
    arrays = numbered(*shapes)
    assert view.shape == array.shape
    assert (viewed(view, arrays) == array).all()
    assert prove_cover(view.shape, [piece.box for piece in view.pieces]) is None
    for source, shape, pieces in zip(
        arrays, shapes, inverse_pieces(view, [2] * len(shapes)), strict=True
    ):
        assert prove_cover(shape, [piece.box for piece in pieces]) is None
        assert (filled(shape, pieces, [array]) == source).all()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_narrowed_view_of_many_pieces_takes_from_those_that_it_meets(first: int) -> None:
    a, b, c = numbered((2, 1), (1, 1), (3, 1))
    view = concatenated([whole_view(n, each.shape) for n, each in enumerate((a, b, c))], 0)
    taken = narrowed_view(view, 0, first, 2, 3)
    assert (viewed(taken, [a, b, c]) == np.concatenate([a, b, c])[[first, first + 3]]).all()


NAMES = ("q", "k")


def of_rows(view: View) -> View:
    return view_of_rows("qkv", TensorView(view, NAMES), 3)


def test_b_of_fused_layers_has_the_rows_of_their_weights() -> None:
    first, other, down = numbered((8, 3), (4, 3), (3, 5))
    parts = (BoundTensor(0, (8, 5)), BoundTensor(1, (4, 5)))
    weight = view_of(BoundOperation("interleave", parts, (2,)))
    products = [np.array(up) @ down for up in (first, other)]
    assert (viewed(of_rows(weight), [first, other]) @ down == viewed(weight, products)).all()


@pytest.mark.parametrize(
    "view",
    [
        transposed_view(whole_view(0, (6, 6)), 0, 1),
        concatenated([whole_view(0, (6, 2)), whole_view(1, (6, 4))], 1),
        narrowed_view(whole_view(0, (6, 6)), 1, 2, 4),
        whole_view(0, (6,)),
    ],
    ids=["transposed", "columns", "part", "vector"],
)
def test_a_layout_that_moves_columns_is_refused(view: View) -> None:
    with pytest.raises(Unsupported, match="does not consist of whole rows of q"):
        of_rows(view)
