"""Compares two arrays of one dtype: distances in ulps and in values, equal bytes, counts of NaN.

Everything is exact except the norms. The distance in ulps is the number of steps from one value to
the other, if each step goes to the next value that the dtype can represent. -0.0 and 0.0 count as
the same value, so their distance is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import local
from typing import Any, NamedTuple

import numpy as np

from zerotools.io.numeric.dtype_casts import INFINITY, Array

BLOCK = 2**16
"""The number of elements that are compared at once. More elements take more memory. With fewer, the
overhead of numpy's calls takes longer than the comparison.
"""
_SQUARABLE = 1e-100, 1e100
"""The squares of magnitudes in this range are added as float64: even a very large number of them
neither overflows nor vanishes.
"""
_UNSIGNED = "float8_e8m0fnu"
"""The floating-point type that has no sign. It is used for scales."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The difference that is allowed for each element. If `ulps` and `absolute` are None, no
    difference is allowed.

    Two NaNs are equal under `ulps` and under `absolute`. A number never equals NaN or infinity.

    Attributes:
        ulps: the largest allowed distance in ulps.
        absolute, relative: at most `absolute` + `relative` x the magnitude of the element in the
            first array. The argument `sizes` of `array_distance` can set larger magnitudes.
    """

    ulps: int | None = None
    absolute: float | None = None
    relative: float = 0.0


NOTHING = Allowance()


class Extreme(NamedTuple):
    """One element in a comparison of two arrays, for example the one with the largest distance.

    Attributes:
        value: the distance; 0 in `Distance.first` and `Distance.first_unmatched`.
        place: the index of the element in row-major order.
        ours, theirs: the elements of the two arrays at this index.
    """

    value: float
    place: int
    ours: complex
    theirs: complex


class Norm(NamedTuple):
    """A Euclidean norm, stored as `scale` times the square root of `total`. Without a scale, the
    squares of very large or small numbers would overflow or vanish.
    """

    scale: float = 0.0
    total: float = 0.0

    @property
    def value(self) -> float:
        return self.scale * math.sqrt(self.total)

    def __add__(self, other: object) -> Norm:
        """Return the norm of the two arrays joined to one."""
        assert isinstance(other, Norm)
        low, high = sorted((self, other))
        if low.scale == 0 or math.isinf(high.scale):
            return high
        return Norm(high.scale, high.total + low.total * (low.scale / high.scale) ** 2)


NO_NORM = Norm()


@dataclass(frozen=True, slots=True)
class Distance:
    """The differences between two arrays of `elements` elements each.

    Attributes:
        differing: the number of elements with different bits.
        both_nan: the number of elements with different bits that are NaN in both arrays.
        unmatched: the number of elements that are NaN or infinite in only one array, or infinite
            with different signs.
        outside: the number of elements that differ by more than the allowance.
        max_abs, max_ulp: the largest distances between elements that are finite in both arrays;
            `max_ulp` is None for integers.
        first, first_unmatched: the first differing element, and the first unmatched one.
        difference: the norm of the difference of the elements that are finite in both arrays.
        norm, other_norm: the norms of the finite elements of the first and of the second array.
    """

    elements: int = 0
    differing: int = 0
    both_nan: int = 0
    unmatched: int = 0
    outside: int = 0
    max_abs: Extreme | None = None
    max_ulp: Extreme | None = None
    first: Extreme | None = None
    first_unmatched: Extreme | None = None
    difference: Norm = NO_NORM
    norm: Norm = NO_NORM
    other_norm: Norm = NO_NORM

    @property
    def unchanged(self) -> float | None:
        """The fraction of elements with the same bits in both arrays; None for empty arrays."""
        return 1 - self.differing / self.elements if self.elements else None

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between the arrays; None if one of them is 0, or if a NaN or an
        infinity is among the elements that differ. 1 - cosine is exact to about 1e-15, because it
        is computed from the norm of the difference."""
        ours, theirs = self.norm.value, self.other_norm.value
        if not (ours and theirs) or self.unmatched or self.both_nan:
            return None
        apart, ratio = self.difference.value / ours, theirs / ours
        return max(-1.0, min(1.0, 1 - (apart**2 - (1 - ratio) ** 2) / (2 * ratio)))

    @property
    def relative(self) -> float | None:
        """The norm of the difference divided by the norm of the first array; None if the norm of
        the first array is 0. Both norms omit values that are not finite."""
        return self.difference.value / self.norm.value if self.norm.value else None

    def __add__(self, other: Distance) -> Distance:
        """Return the differences between two arrays, of which `self` and `other` are two parts."""
        return Distance(
            self.elements + other.elements,
            self.differing + other.differing,
            self.both_nan + other.both_nan,
            self.unmatched + other.unmatched,
            self.outside + other.outside,
            _larger(self.max_abs, other.max_abs),
            _larger(self.max_ulp, other.max_ulp),
            _earlier(self.first, other.first),
            _earlier(self.first_unmatched, other.first_unmatched),
            self.difference + other.difference,
            self.norm + other.norm,
            self.other_norm + other.other_norm,
        )


def _larger(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    found = [each for each in (one, other) if each is not None]
    return max(found, key=lambda each: (each.value, -each.place), default=None)


def _earlier(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: each.place, default=None)


def same_bytes(ours: Array, theirs: Array) -> bool:
    """Return whether two arrays of bytes are equal. Both must begin at an address that is a
    multiple of 8.
    """
    rest = len(ours) % 8
    if rest and not np.array_equal(ours[-rest:], theirs[-rest:]):
        return False
    whole = len(ours) - rest
    return bool((ours[:whole].view(np.uint64) == theirs[:whole].view(np.uint64)).all())


class _ThreadArrays(local):
    """Reusable arrays for intermediate values of one thread.

    For each new array of numpy the system clears memory, which takes longer than the computation of
    the values.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def array(self, use: str, element: Any, count: int) -> Array:
        """Return an array of `count` elements with undefined values. It is valid until the next
        call with the same `use`.
        """
        nbytes = count * np.dtype(element).itemsize
        buffer = self._buffers.get(use)
        if buffer is None or len(buffer) < nbytes:
            buffer = self._buffers[use] = np.empty(max(nbytes, 8 * BLOCK), np.uint8)
        return buffer[:nbytes].view(element)


_ARRAYS = _ThreadArrays()


def array_distance(
    ours: Array, theirs: Array, begin: int, allowance: Allowance, sizes: Array | None = None
) -> Distance:
    """Compare two one-dimensional arrays of the same dtype and length, of at most `BLOCK` elements.

    The first element of the arrays has the index `begin` in its tensor. The relative allowance of
    an element is multiplied by its magnitude in `ours` or, if this is larger, in `sizes`.
    """
    if ours.dtype.kind == "c":
        differs = (_bits(ours) != _bits(theirs)).any(axis=1)
    else:
        differs = _ARRAYS.array("differs", np.bool_, ours.size)
        np.not_equal(_bits(ours), _bits(theirs), out=differs)
    count = np.count_nonzero(differs)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = widened(ours, "ours")
        norm = _norm_of_finite(wide)
        if not count:
            return Distance(ours.size, norm=norm, other_norm=norm)
        other = widened(theirs, "theirs")
        found = Distance(ours.size, norm=norm, other_norm=_norm_of_finite(other))
        places = None
        if count < ours.size:
            places = np.flatnonzero(differs)
            ours, theirs = ours[places], theirs[places]
            wide, other = wide[places], other[places]
            sizes = None if sizes is None else sizes[places]
    apart = _DifferingPairs(ours, theirs, wide, other, begin, places)
    apart.sizes = sizes
    return found + apart.distance(allowance)


class _DifferingPairs:
    """Pairs of elements from two arrays; the elements of each pair differ. `x` and `y` are the
    values from the first and from the second array in a wider dtype.

    `places` has the index of each pair, counted from `begin`; None: the pairs are all elements.
    """

    def __init__(
        self, ours: Array, theirs: Array, x: Array, y: Array, begin: int, places: Array | None
    ) -> None:
        self._is_float = _is_float(ours.dtype)
        self._x = x
        self._y = y
        self.sizes: Array | None = None
        self._begin = begin
        self._places = places
        self._steps = _steps(ours, theirs)
        if not self._is_float:
            self._values = self._steps.astype(np.float64)  # float64 may round 64-bit differences
            return
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.subtract(x, y, out=_ARRAYS.array("apart", x.dtype, x.size))
            self._values = np.abs(apart) if apart.dtype.kind == "c" else np.abs(apart, out=apart)

    def distance(self, allowance: Allowance) -> Distance:
        values = self._values
        farthest = int(np.argmax(values))  # the index of a NaN, if there is a NaN
        top = float(values[farthest])
        if not math.isfinite(top):
            return self._distance_with_nonfinite(allowance)
        return Distance(
            differing=len(values),
            outside=len(values) - self._count_within(allowance),
            max_abs=self._at(farthest, top),
            max_ulp=self._largest(self._steps) if self._is_float else None,
            first=self._at(0, 0.0),
            difference=norm_of(values, top),
        )

    def _distance_with_nonfinite(self, allowance: Allowance) -> Distance:
        """Return the distance if some elements are not finite, or if a difference overflows."""
        x, y = self._x, self._y
        finite, both_nan = np.isfinite(x) & np.isfinite(y), np.isnan(x) & np.isnan(y)
        unmatched = ~(finite | both_nan)
        chosen = self._values[finite]
        far = int(finite.sum()) - self._count_within(allowance, finite)
        if allowance == NOTHING:
            far += int(both_nan.sum())
        return Distance(
            differing=len(x),
            both_nan=int(both_nan.sum()),
            unmatched=int(unmatched.sum()),
            outside=int(unmatched.sum()) + far,
            max_abs=self._largest(self._values, finite),
            max_ulp=self._largest(self._steps, finite) if self._is_float else None,
            first=self._at(0, 0.0),
            first_unmatched=self._at(int(np.argmax(unmatched)), 0.0) if unmatched.any() else None,
            difference=norm_of(chosen, float(chosen.max(initial=0.0))),
        )

    def _count_within(self, allowance: Allowance, finite: Array | None = None) -> int:
        """Return how many pairs are within the allowance. `finite` is a mask of the pairs to count;
        None: all pairs.
        """
        if allowance.absolute is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                size = np.abs(self._x)
                if self.sizes is not None:
                    size = np.maximum(size, self.sizes)
                most = allowance.absolute + allowance.relative * size
                near = self._values <= most
        elif allowance.ulps is not None and self._is_float:
            near = self._steps <= allowance.ulps
        else:
            return 0
        return int(np.count_nonzero(near if finite is None else near & finite))

    def _at(self, position: int, value: float) -> Extreme:
        place = position if self._places is None else int(self._places[position])
        x, y = self._x[position].item(), self._y[position].item()
        return Extreme(value, self._begin + place, x, y)

    def _largest(self, values: Array, finite: Array | None = None) -> Extreme | None:
        if finite is not None:
            if not finite.any():
                return None
            values = np.where(finite, values, 0)
        position = int(np.argmax(values))
        if finite is not None and not finite[position]:  # all distances of finite pairs are 0
            position = int(np.argmax(finite))
        return self._at(position, values[position].item())


def _is_float(element: np.dtype[Any]) -> bool:
    return element.kind not in "iub"


def _bits(values: Array) -> Array:
    if values.dtype.kind == "c":
        return values.view(f"u{values.itemsize // 2}").reshape(-1, 2)
    return values.view(f"u{values.itemsize}")


def widened(values: Array, use: str) -> Array:
    """Return the values as float64 or complex128. A new array is valid until the next call with the
    same `use` in this thread.
    """
    element = np.complex128 if values.dtype.kind == "c" else np.float64
    if values.dtype == element:
        return values
    wide = _ARRAYS.array(use, element, values.size)
    wide[:] = values
    return wide


def _norm_of_finite(values: Array) -> Norm:
    parts = values.view(np.float64)
    scale = max(float(parts.max(initial=0.0)), -float(parts.min(initial=0.0)))
    if not math.isfinite(scale):  # with a NaN, the largest and the smallest value are NaN
        parts = values[np.isfinite(values)].view(np.float64)
        scale = max(float(parts.max(initial=0.0)), -float(parts.min(initial=0.0)))
    return norm_of(parts, scale)


def norm_of(parts: Array, scale: float) -> Norm:
    """Return the Euclidean norm of the numbers in `parts`, a float64 array without NaN. `scale` is
    the largest magnitude in `parts`.
    """
    if scale == 0 or math.isinf(scale):
        return Norm(scale, float(scale > 0))
    if not _SQUARABLE[0] < scale < _SQUARABLE[1]:
        parts = parts / scale
    else:
        scale = 1.0
    # np.dot is not used, because the threads of BLAS wait for each other by spinning.
    return Norm(scale, float(np.einsum("i,i->", parts, parts)))


def _steps(ours: Array, theirs: Array) -> Array:
    """Return the distance of each pair of elements in ulps, as unsigned integers with as many bits
    as the dtype.

    For complex numbers it is the larger distance of the real and the imaginary part. The result has
    no meaning if one of the two elements is not finite.
    """
    if ours.dtype.kind == "c":
        part = np.dtype(f"<f{ours.itemsize // 2}")
        halves = _steps(ours.view(part), theirs.view(part)).reshape(-1, 2)
        farther: Array = halves.max(axis=1, initial=0)
        return farther
    x, y = _ordered(ours, "ordered"), _ordered(theirs, "other ordered")
    unsigned = f"u{ours.itemsize}"  # it can hold every difference
    steps: Array = np.maximum(x, y, out=_ARRAYS.array("steps", x.dtype, x.size)).view(unsigned)
    least = np.minimum(x, y, out=_ARRAYS.array("other ordered", x.dtype, x.size)).view(unsigned)
    steps -= least
    return steps


def _ordered(values: Array, use: str) -> Array:
    """Return an integer for each value, with as many bits as the dtype. The integers sort like the
    values, and neighbouring values get consecutive integers.
    """
    if values.dtype.kind in "iu":
        return values
    if values.dtype.kind == "b" or values.dtype.name == _UNSIGNED:
        return values.view(np.uint8)
    bits = values.view(f"i{values.itemsize}")
    width = 8 * values.itemsize - 1
    negative = np.right_shift(bits, width, out=_ARRAYS.array("negative", bits.dtype, bits.size))
    largest = bits.dtype.type((1 << width) - 1)
    ordered: Array = np.bitwise_and(
        negative, largest, out=_ARRAYS.array(use, bits.dtype, bits.size)
    )
    ordered ^= bits
    ordered -= negative  # -1 or 0
    return ordered


Buffer = Any
"""Contiguous bytes: `bytes`, a memoryview, an array."""


def are_equal(ours: Buffer, theirs: Buffer) -> bool:
    """Return whether two buffers have the same bytes. The comparison uses extra memory of an eighth
    of their size.

    `==` of a memoryview compares its items one after another, and numpy's comparison of bytes is
    slow too. A comparison of eight bytes at a time is about 12 times as fast.
    """
    first, second = np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8)
    if len(first) != len(second):
        return False
    whole = len(first) & ~7
    words = first[:whole].view(np.uint64), second[:whole].view(np.uint64)
    return bool(np.array_equal(*words) and np.array_equal(first[whole:], second[whole:]))


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """The number of elements that are NaN, that are infinite, and, if requested, that are less than
    zero.
    """

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
    """Count the NaNs and infinities in a flat array of a floating-point dtype of numpy or
    ml_dtypes.

    With `negatives` also count the elements less than zero (-0.0 is not).
    """
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
