"""Copies between arrays of different orders, against numpy's own."""

from __future__ import annotations

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest

from zerotools.io.numeric.cache_copy import cast_ordered
from zerotools.io.numeric.numpy_dtypes import NO_LOSSES, numpy_cast


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("shape", [(70, 130, 9), (150, 2, 140), (2, 300, 100), (130, 140, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_every_order_is_copied(order: tuple[int, ...], shape: tuple[int, ...], dtype: type) -> None:
    count = int(np.prod(shape))
    values = (np.arange(count) % 251).astype(dtype).reshape(shape).transpose(order)
    for made in permutations(range(3)):
        out = np.zeros([values.shape[dim] for dim in made], dtype).transpose(np.argsort(made))
        assert cast_ordered(out, values, numpy_cast) == NO_LOSSES
        assert (out == values).all()


def test_a_part_of_an_array_is_written_and_nothing_beside_it() -> None:
    whole = np.zeros((200, 300, 2), np.uint16)
    values = np.arange(2 * 280 * 190, dtype=np.uint16).reshape(2, 280, 190).transpose(2, 1, 0)
    cast_ordered(whole[5:195, 10:290], values, numpy_cast)
    assert (whole[5:195, 10:290] == values).all()
    whole[5:195, 10:290] = 0
    assert not whole.any()


def test_rows_that_are_repeated_are_copied() -> None:
    row = np.arange(400, dtype="f4")
    values = np.broadcast_to(row, (300, 400))
    out = np.zeros((400, 300), "f4").T
    cast_ordered(out, values, numpy_cast)
    assert (out == row).all()


def test_a_cast_counts_what_is_lost_in_every_block() -> None:
    values = np.ones((300, 400), "f4").T
    values[0, 0] = values[399, 299] = 1e38
    out = np.zeros((400, 300), ml_dtypes.float8_e5m2)
    with np.errstate(over="ignore"):
        losses = cast_ordered(out, values, numpy_cast)
    assert losses.overflowed == 2
    assert (out[1:-1].astype("f4") == 1).all()
