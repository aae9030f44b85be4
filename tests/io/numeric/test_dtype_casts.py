from __future__ import annotations

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.io.numeric.dtype_casts import (
    NONE_LOST,
    LostValues,
    cast_into,
    count_lost_values,
    numpy_dtype,
)

FLOATS = (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT32, dtypes.FLOAT64)


@pytest.mark.parametrize("dtype", [dtypes.FLOAT16, dtypes.BFLOAT16], ids=str)
def test_each_pattern_alone_is_finite_or_not_as_numpy_says(dtype: DType) -> None:
    patterns = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))
    wide = patterns.astype(np.float32)
    for pattern, value in zip(patterns.reshape(-1, 1), wide, strict=True):
        wanted = LostValues(nans=int(np.isnan(value)), infinities=int(np.isinf(value)))
        assert count_lost_values(pattern, pattern) == wanted


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes_are_found_among_others_and_through_strides(dtype: DType) -> None:
    element = numpy_dtype(dtype)
    for value in (np.inf, -np.inf, np.nan, -np.nan):
        values = np.zeros((7, 5), element)
        assert count_lost_values(values[:, ::2], values[:, ::2]) == NONE_LOST
        values[3, 2] = value
        found = count_lost_values(values[:, ::2], values[:, ::2])
        assert found.nans + found.infinities == 1
        assert count_lost_values(values[:, 1::2], values[:, 1::2]) == NONE_LOST
    assert count_lost_values(np.zeros((0, 3), element), np.zeros((0, 3), element)) == NONE_LOST
    assert count_lost_values(np.array(np.inf, element), np.array(np.inf, element)).infinities == 1


def test_overflow_is_told_from_infinity() -> None:
    source = np.array([65504, 65519.99, 65520, -7e4, np.inf, np.nan, 1e-9], np.float32)
    destination = np.empty(source.shape, np.float16)
    found = cast_into(destination, source)
    assert found == LostValues(overflowed=2, largest=7e4, nans=1, infinities=1)


def test_the_largest_float32_overflows_bfloat16() -> None:
    source = np.array([np.finfo(np.float32).max, 1.0], np.float32)
    found = cast_into(np.empty(2, numpy_dtype(dtypes.BFLOAT16)), source)
    assert (found.overflowed, found.nans, found.infinities) == (1, 0, 0)
