"""The numpy side of `DType`: numpy's dtypes, views of raw bytes, and casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerotools.core.dtypes import FLOAT8_E4M3FN, FLOAT8_E8M0FNU, DType
from zerotools.core.errors import Unsupported

Array = NDArray[Any]


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return numpy's little-endian dtype for a `DType`. bfloat16 and float8 come from ml_dtypes."""
    try:
        element: np.dtype[Any] = np.dtype(dtype.name)
    except TypeError:
        import ml_dtypes

        element = np.dtype(getattr(ml_dtypes, dtype.name))
    return element.newbyteorder("<")


@dataclass(frozen=True, slots=True)
class LostValues:
    """The number of values that a cast lost, and of values that were not finite before the cast.

    Attributes:
        overflowed: finite values that were too large for the new dtype. They became infinite, NaN
            or the largest number of the new dtype.
        largest: the largest magnitude among the overflowed values.
        nans, infinities: values that were NaN or infinite before the cast.
    """

    overflowed: int = 0
    largest: float = 0.0
    nans: int = 0
    infinities: int = 0

    def __add__(self, other: LostValues) -> LostValues:
        return LostValues(
            self.overflowed + other.overflowed,
            max(self.largest, other.largest),
            self.nans + other.nans,
            self.infinities + other.infinities,
        )


NONE_LOST = LostValues()


def check_castable(source: DType, target: DType) -> None:
    """Raise an error unless both dtypes are equal, or both are floating-point and `target` is not a
    dtype for scales.

    Raises:
        Unsupported: the dtypes differ, and one is not floating-point, or the new dtype holds only
            powers of two.
    """
    if source == target:
        return
    if not (source.is_float and target.is_float):
        raise Unsupported(
            f"a cast from {source} to {target} would change the meaning of the numbers; keep the "
            "dtype"
        )
    if target == FLOAT8_E8M0FNU:
        raise Unsupported(
            f"a cast to {target} would lose most values, because this dtype of scales has only "
            "powers of two; choose another dtype"
        )


# Writes its second argument into the first, of the same shape, rounding to nearest even.
Cast = Callable[[Array, Array], None]

# float8_e4m3fn has no infinity. A value larger than this rounds to more than its largest number,
# 448. torch (2.13) writes 448 instead, also for infinities.
_LARGEST_E4M3FN, _ROUNDS_TO_LARGEST = 448.0, 464.0
_E4M3FN = FLOAT8_E4M3FN.name
_BLOCK = 2**18


def numpy_cast(destination: Array, source: Array) -> None:
    """Cast the elements of `source` into `destination`, with the same bits as a cast by torch,
    except for NaN.

    torch casts float64 to float16, and one 8-bit float to another, through float32, which rounds
    twice. This function also rounds twice.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if _is_through_float32(source.dtype, destination.dtype):
            _cast_through_float32(destination, source)
        else:
            np.copyto(destination, source, casting="unsafe")
        if destination.dtype.name == _E4M3FN:
            lost = np.isnan(destination) & ~np.isnan(source)
            largest = np.array(_LARGEST_E4M3FN, np.float32)
            destination[lost] = np.copysign(largest, source[lost].astype(np.float32))


def as_type(values: Array, dtype: DType) -> Array:
    """Return the values cast to `dtype` by `numpy_cast`. An array that has this dtype already is
    returned unchanged.
    """
    element = numpy_dtype(dtype)
    if values.dtype == element:
        return values
    cast = np.empty(values.shape, element)
    numpy_cast(cast, values)
    return cast


def cast_bytes(data: bytes | bytearray, source: DType, target: DType) -> bytes:
    """Convert the bytes of elements from the dtype `source` to the dtype `target`. All NaNs get the
    same bits.
    """
    values = np.frombuffer(data, numpy_dtype(source))
    cast: Array = np.empty(values.size, numpy_dtype(target))
    numpy_cast(cast, values)
    cast[np.isnan(cast)] = np.nan
    return cast.tobytes()


def _is_through_float32(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    return (source.name, target.name) == ("float64", "float16") or (
        source.itemsize == target.itemsize == 1
    )


def _cast_through_float32(destination: Array, source: Array) -> None:
    """Cast by way of float32. This is done in blocks, because the float32 values take memory."""
    if source.size > _BLOCK:
        axis = max(range(source.ndim), key=lambda d: source.shape[d])
        middle = source.shape[axis] // 2
        for half in (slice(None, middle), slice(middle, None)):
            index = (*(slice(None),) * axis, half)
            _cast_through_float32(destination[index], source[index])
        return
    np.copyto(destination, source.astype(np.float32), casting="unsafe")


def cast_into(destination: Array, source: Array, cast: Cast = numpy_cast) -> LostValues:
    """Write `source` into `destination`, with the function `cast` if the dtypes differ. Return the
    number of values that the cast lost.
    """
    if source.dtype == destination.dtype:
        np.copyto(destination, source)
        return NONE_LOST
    cast(destination, source)
    return count_lost_values(destination, source)


def count_lost_values(destination: Array, source: Array) -> LostValues:
    """Count the values that a cast from `source` to `destination` lost. Both have the same shape.

    Only the elements of `destination` that are infinite, NaN, or (in float8_e4m3fn) the largest
    number are compared with their values in `source`.
    """
    if not _may_be_lost(destination):
        return NONE_LOST
    with np.errstate(invalid="ignore"):  # a signalling NaN
        before = source[_extreme_elements(destination)].astype(np.float64)
    lost = np.isfinite(before)
    if destination.dtype.name == _E4M3FN:
        lost &= np.abs(before) > _ROUNDS_TO_LARGEST
    return LostValues(
        int(lost.sum()),
        float(np.abs(before[lost]).max(initial=0.0)),
        int(np.isnan(before).sum()),
        int(np.isinf(before).sum()),
    )


def _extreme_elements(values: Array) -> Array:
    """Return a mask of the elements that are infinite or NaN. In float8_e4m3fn, which has no
    infinity, the largest number counts too."""
    if values.itemsize == 1:
        found: Array = _extreme_patterns(values.dtype)[values.view("u1")]
        return found
    return ~np.isfinite(values)


@cache
def _extreme_patterns(element: np.dtype[Any]) -> Array:
    """Return `_extreme_elements` of the 256 bit patterns of an 8-bit dtype."""
    patterns = np.arange(256, dtype=np.uint8).view(element).astype(np.float64)
    ends: Array = ~np.isfinite(patterns)
    if element.name == _E4M3FN:
        ends |= np.abs(patterns) == _LARGEST_E4M3FN
    return ends


INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
"""The bits of positive infinity in each type. All larger bit patterns are NaN. The same holds for
negative values with the sign bit set.
"""


def _may_be_lost(values: Array) -> bool:
    """Return whether `values` has `_extreme_elements`. For dtypes of 16 bits or more this is about
    20 times faster than isfinite."""
    if values.size == 0:
        return False
    if values.dtype.name.startswith("float8"):
        return bool(_extreme_elements(values).any())
    infinity = INFINITY.get(values.dtype.name)
    if infinity is None:
        return False
    bits = 8 * values.itemsize
    if int(values.view(f"i{values.itemsize}").max()) >= infinity:
        return True
    return int(values.view(f"u{values.itemsize}").max()) >= infinity | 1 << (bits - 1)
