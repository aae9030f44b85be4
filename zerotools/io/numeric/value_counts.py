"""Counts of odd floating-point values, quick without such values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerotools.io.numeric.numpy_dtypes import INFINITY, Array


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Elements that are NaN, infinite, or, if requested, less than zero."""

    nans: int = 0
    infinities: int = 0
    negatives: int = 0

    def __add__(self, other: ValueCounts) -> ValueCounts:
        return ValueCounts(
            self.nans + other.nans,
            self.infinities + other.infinities,
            self.negatives + other.negatives,
        )


NOTHING_ODD = ValueCounts()


def count_values(values: Array, *, negatives: bool = False) -> ValueCounts:
    """Count the non-finite values in a flat array of a floating-point type of numpy or ml_dtypes,
    and with `negatives` also those less than zero (-0.0 is not)."""
    if not values.size:
        return NOTHING_ODD
    infinity = INFINITY.get(values.dtype.name)
    if infinity is not None:
        sign = 1 << (8 * values.itemsize - 1)
        largest = int(np.maximum.reduce(values.view(f"u{values.itemsize}")))
        if largest < infinity:
            return NOTHING_ODD  # as bits, numbers below zero are larger than infinity
        positive = int(np.maximum.reduce(values.view(f"i{values.itemsize}")))
        is_finite = positive < infinity and largest < infinity | sign
        if is_finite and (not negatives or largest == sign):
            return NOTHING_ODD
    else:
        values = values.astype(np.float32)
    with np.errstate(invalid="ignore"):
        return ValueCounts(
            int(np.count_nonzero(np.isnan(values))),
            int(np.count_nonzero(np.isinf(values))),
            int(np.count_nonzero(values < 0)) if negatives else 0,
        )
