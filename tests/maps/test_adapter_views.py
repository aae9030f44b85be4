"""Rows of B follow the rows of the weight: B·A in the new layout is the view of B·A."""

from __future__ import annotations

import numpy as np
import pytest

from tests.maps.viewed import numbered, viewed
from zerotools.core.errors import Unsupported
from zerotools.maps.adapter_views import view_of_rows
from zerotools.maps.geometry import BoundOperation, BoundTensor, view_of
from zerotools.maps.views import TensorView, View, joined, narrowed, transposed, whole

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
        transposed(whole(0, (6, 6)), 0, 1),
        joined([whole(0, (6, 2)), whole(1, (6, 4))], 1),
        narrowed(whole(0, (6, 6)), 1, 2, 4),
        whole(0, (6,)),
    ],
    ids=["transposed", "columns", "part", "vector"],
)
def test_a_layout_that_moves_columns_is_refused(view: View) -> None:
    with pytest.raises(Unsupported, match="does not consist of whole rows of q"):
        of_rows(view)
