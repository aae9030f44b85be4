"""numpy's side of `DType`: element types, views of raw bytes, and the cast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerotools.core.dtypes import FLOAT16, DType
from zerotools.core.errors import Unsupported

Array = NDArray[Any]


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The little-endian numpy element type; bfloat16 and float8 come from ml_dtypes."""
    try:
        element: np.dtype[Any] = np.dtype(dtype.name)
    except TypeError:
        import ml_dtypes

        element = np.dtype(getattr(ml_dtypes, dtype.name))
    return element.newbyteorder("<")


@dataclass(frozen=True, slots=True)
class CastLosses:
    """What a cast met: finite values that became infinite, and NaNs, counted in elements."""

    overflowed: int = 0
    largest: float = 0.0
    nans: int = 0

    def __add__(self, other: CastLosses) -> CastLosses:
        return CastLosses(
            self.overflowed + other.overflowed,
            max(self.largest, other.largest),
            self.nans + other.nans,
        )


NO_LOSSES = CastLosses()


def check_castable(source: DType, target: DType) -> None:
    """Refuse casts that are not between floating-point types.

    Raises:
        Unsupported: the types differ and one of them is not floating-point.
    """
    if source != target and not (source.is_float and target.is_float):
        raise Unsupported(f"a cast from {source} to {target} would change what the numbers mean")


def cast_into(destination: Array, source: Array, target: DType) -> CastLosses:
    """Write `source` into `destination`, rounding to nearest even where the types differ.

    Equal bit for bit to torch's cast for every value that is not NaN.
    """
    if source.dtype == destination.dtype:
        np.copyto(destination, source)
        return NO_LOSSES
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(destination, source, casting="unsafe")
    return _losses(destination, source) if target is FLOAT16 else NO_LOSSES


def _losses(destination: Array, source: Array) -> CastLosses:
    nonfinite = ~np.isfinite(destination)
    if not nonfinite.any():
        return NO_LOSSES
    before = source[nonfinite].astype(np.float64)
    lost = np.isfinite(before)
    return CastLosses(
        int(lost.sum()),
        float(np.abs(before[lost]).max(initial=0.0)),
        int(np.isnan(before).sum()),
    )
