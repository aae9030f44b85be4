"""numpy's side of `DType`: element types, views of raw bytes, and the cast."""

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
    """Return the little-endian numpy element type; bfloat16 and float8 come from ml_dtypes."""
    try:
        element: np.dtype[Any] = np.dtype(dtype.name)
    except TypeError:
        import ml_dtypes

        element = np.dtype(getattr(ml_dtypes, dtype.name))
    return element.newbyteorder("<")


@dataclass(frozen=True, slots=True)
class CastLosses:
    """The losses of a copy, in elements. Finite values too large for the type became infinite, NaN
    or its largest number; `largest` is the largest of their magnitudes. Others were NaN or infinite
    before."""

    overflowed: int = 0
    largest: float = 0.0
    nans: int = 0
    infinities: int = 0

    def __add__(self, other: CastLosses) -> CastLosses:
        return CastLosses(
            self.overflowed + other.overflowed,
            max(self.largest, other.largest),
            self.nans + other.nans,
            self.infinities + other.infinities,
        )


NO_LOSSES = CastLosses()


def check_castable(source: DType, target: DType) -> None:
    """Raise an error for casts that are not between floating-point types, or into a type for
    scales.

    Raises:
        Unsupported: the types differ, and one is not floating-point or holds only powers of two.
    """
    if source == target:
        return
    if not (source.is_float and target.is_float):
        raise Unsupported(
            f"a cast from {source} to {target} would change the meaning of the numbers"
        )
    if target == FLOAT8_E8M0FNU:
        raise Unsupported(
            f"{target} holds only powers of two, for scales: a cast would lose all other values"
        )


# Writes its second argument into the first, of the same shape, rounding to nearest even.
Cast = Callable[[Array, Array], None]

# float8_e4m3fn has no infinity. A value larger than this rounds to more than its largest number,
# 448. torch (2.13) writes 448 instead, also for infinities.
_LARGEST_E4M3FN, _ROUNDS_TO_LARGEST = 448.0, 464.0
_E4M3FN = FLOAT8_E4M3FN.name
_BLOCK = 2**18


def numpy_cast(destination: Array, source: Array) -> None:
    """Cast as torch does, bit for bit for every value except NaN.

    torch casts float64 to float16, and one 8-bit float to another, through float32: a float64 that
    is just off the middle of two numbers is rounded twice.
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
    """Return the values in another type, cast as by `numpy_cast`; the array itself if it has the
    type."""
    element = numpy_dtype(dtype)
    if values.dtype == element:
        return values
    cast = np.empty(values.shape, element)
    numpy_cast(cast, values)
    return cast


def cast_bytes(data: bytes | bytearray, source: DType, target: DType) -> bytes:
    """Return elements of the type `source` as `target` has them, with one form of NaN."""
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
    """Cast in blocks, because intermediate values take memory."""
    if source.size > _BLOCK:
        axis = max(range(source.ndim), key=lambda d: source.shape[d])
        middle = source.shape[axis] // 2
        for half in (slice(None, middle), slice(middle, None)):
            index = (*(slice(None),) * axis, half)
            _cast_through_float32(destination[index], source[index])
        return
    np.copyto(destination, source.astype(np.float32), casting="unsafe")


def cast_into(destination: Array, source: Array, cast: Cast = numpy_cast) -> CastLosses:
    """Write `source` into `destination`, with `cast` if the types differ."""
    if source.dtype == destination.dtype:
        np.copyto(destination, source)
        return NO_LOSSES
    cast(destination, source)
    return losses_of(destination, source)


def losses_of(destination: Array, source: Array) -> CastLosses:
    """Return the losses: elements of `destination` that are not finite, or the largest number, by
    their values in `source`, of the same shape."""
    if not _may_be_lost(destination):
        return NO_LOSSES
    with np.errstate(invalid="ignore"):  # a signalling NaN
        before = source[_at_the_end(destination)].astype(np.float64)
    lost = np.isfinite(before)
    if destination.dtype.name == _E4M3FN:
        lost &= np.abs(before) > _ROUNDS_TO_LARGEST
    return CastLosses(
        int(lost.sum()),
        float(np.abs(before[lost]).max(initial=0.0)),
        int(np.isnan(before).sum()),
        int(np.isinf(before).sum()),
    )


def _at_the_end(values: Array) -> Array:
    """Return which elements are infinite or NaN, or the largest of a type without infinities."""
    if values.itemsize == 1:
        found: Array = _ends(values.dtype)[values.view("u1")]
        return found
    return ~np.isfinite(values)


@cache
def _ends(element: np.dtype[Any]) -> Array:
    """Return the same as `_at_the_end` for each of the 256 patterns of an 8-bit type."""
    patterns = np.arange(256, dtype=np.uint8).view(element).astype(np.float64)
    ends: Array = ~np.isfinite(patterns)
    if element.name == _E4M3FN:
        ends |= np.abs(patterns) == _LARGEST_E4M3FN
    return ends


INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
"""The bits of infinity: everything above is NaN, and with the sign bit the same of negative
values."""


def _may_be_lost(values: Array) -> bool:
    """Return whether a float is infinite or NaN, or at the end of its range: for 16 bits or more
    about 20 times faster than isfinite."""
    if values.size == 0:
        return False
    if values.dtype.name.startswith("float8"):
        return bool(_at_the_end(values).any())
    infinity = INFINITY.get(values.dtype.name)
    if infinity is None:
        return False
    bits = 8 * values.itemsize
    if int(values.view(f"i{values.itemsize}").max()) >= infinity:
        return True
    return int(values.view(f"u{values.itemsize}").max()) >= infinity | 1 << (bits - 1)
