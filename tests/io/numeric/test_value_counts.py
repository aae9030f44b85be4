from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from zerotools.io.numeric.value_counts import NOTHING_ODD, ValueCounts, count_values

TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("element", TYPES, ids=lambda element: element.__name__)
def test_what_is_odd_is_counted(element: type) -> None:
    plain = np.array([0.0, -0.0, 1.5, -2.0], element)
    assert count_values(plain) == NOTHING_ODD
    assert count_values(plain, negatives=True) == ValueCounts(negatives=1)
    assert count_values(np.abs(plain), negatives=True) == NOTHING_ODD
    odd = np.array([np.nan, np.inf, -np.inf, -np.nan, -1.0, -0.0], element)
    assert count_values(odd, negatives=True) == ValueCounts(2, 2, 2)
    assert count_values(odd) == ValueCounts(2, 2)
    assert count_values(odd[:0]) == NOTHING_ODD


def test_minus_zero_alone_is_not_negative() -> None:
    assert count_values(np.array([-0.0, 0.0], np.float32), negatives=True) == NOTHING_ODD


def test_minus_infinity_is_both() -> None:
    found = count_values(np.array([-np.inf], np.float32), negatives=True)
    assert found == ValueCounts(infinities=1, negatives=1)
