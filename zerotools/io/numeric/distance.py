"""How far apart two arrays of one type are: in ulps, in values, and at which element.

Everything is exact but the norms. The distance in ulps is the number of steps between neighbouring
values of the type from one value to the other, so that -0.0 and 0.0 are 0 apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zerotools.io.numeric.numpy_dtypes import Array

BLOCK = 2**16
"""Elements that are looked at together: what is between takes memory."""
_SQUARABLE = 1e-100, 1e100
"""The largest magnitudes whose squares, and the sum of very many of them, are float64 numbers."""
_UNSIGNED = "float8_e8m0fnu"
"""The float that has no sign: the type of scales."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is allowed of each element: nothing (all None), `ulps` steps, or a difference of at most
    `absolute` + `relative` times the magnitude of the first array's element. Two NaNs are equal
    under either; a number is never near NaN or infinity."""

    ulps: int | None = None
    absolute: float | None = None
    relative: float = 0.0


NOTHING = Allowance()


class Extreme(NamedTuple):
    """The element where something is largest: its value there, its number `place` in row-major
    order, and what the two arrays hold there."""

    value: float
    place: int
    ours: complex
    theirs: complex


class Norm(NamedTuple):
    """A Euclidean norm, `scale` times the root of `total`: squares of very large or small numbers
    would overflow or vanish."""

    scale: float = 0.0
    total: float = 0.0

    @property
    def value(self) -> float:
        return self.scale * math.sqrt(self.total)

    def __add__(self, other: object) -> Norm:
        """The norm of both arrays together."""
        assert isinstance(other, Norm)
        low, high = sorted((self, other))
        if low.scale == 0 or math.isinf(high.scale):
            return high
        return Norm(high.scale, high.total + low.total * (low.scale / high.scale) ** 2)


NO_NORM = Norm()


@dataclass(frozen=True, slots=True)
class Distance:
    """Of `elements`, `differing` have other bits, of which `both_nan` are NaN on both sides, and
    `unmatched` are NaN or infinite on one side alone, or infinite with two signs. `outside` are
    beyond the allowance. The extremes are of elements that are finite on both sides; `max_ulp` is
    None for integers. `first` is the first element with other bits, `odd` the first unmatched."""

    elements: int = 0
    differing: int = 0
    both_nan: int = 0
    unmatched: int = 0
    outside: int = 0
    max_abs: Extreme | None = None
    max_ulp: Extreme | None = None
    first: Extreme | None = None
    odd: Extreme | None = None
    difference: Norm = NO_NORM
    norm: Norm = NO_NORM

    @property
    def relative(self) -> float | None:
        """The norm of the difference by that of the first array; None where that is 0. Elements
        that are not finite on both sides are left out."""
        return self.difference.value / self.norm.value if self.norm.value else None

    def __add__(self, other: Distance) -> Distance:
        """The distance of both parts together."""
        return Distance(
            self.elements + other.elements,
            self.differing + other.differing,
            self.both_nan + other.both_nan,
            self.unmatched + other.unmatched,
            self.outside + other.outside,
            _larger(self.max_abs, other.max_abs),
            _larger(self.max_ulp, other.max_ulp),
            _earlier(self.first, other.first),
            _earlier(self.odd, other.odd),
            self.difference + other.difference,
            self.norm + other.norm,
        )


def _larger(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    found = [each for each in (one, other) if each is not None]
    return max(found, key=lambda each: (each.value, -each.place), default=None)


def _earlier(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: each.place, default=None)


def same_bytes(ours: Array, theirs: Array) -> bool:
    """Whether two arrays of bytes, which begin at multiples of 8, are equal."""
    rest = len(ours) % 8
    if rest and not np.array_equal(ours[-rest:], theirs[-rest:]):
        return False
    whole = len(ours) - rest
    return bool((ours[:whole].view(np.uint64) == theirs[:whole].view(np.uint64)).all())


def distance(ours: Array, theirs: Array, begin: int, allowance: Allowance) -> Distance:
    """Compare two arrays of one dimension, type and length, of at most `BLOCK` elements, of which
    the first is element `begin` of its tensor."""
    differs = _bits(ours) != _bits(theirs)
    if differs.ndim > 1:  # the parts of complex numbers
        differs = differs.any(axis=1)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = _widened(ours)
        found = Distance(ours.size, norm=_norm(_only(np.isfinite(wide), wide)))
        places = np.flatnonzero(differs)
        if not places.size:
            return found
        if places.size < ours.size:
            ours, theirs, wide = ours[places], theirs[places], wide[places]
        other = _widened(theirs)
    return found + _apart(ours, theirs, wide, other, places + begin, allowance)


def _apart(
    ours: Array, theirs: Array, x: Array, y: Array, places: Array, allowance: Allowance
) -> Distance:
    """The distance of elements that all differ; `x` and `y` are their values in a wider type."""
    steps = _steps(ours, theirs)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = x - y
        apart = np.abs(apart) if apart.dtype.kind == "c" else np.abs(apart, out=apart)
        finite, both_nan = _kinds(x, y, apart)
        unmatched = ~(finite | both_nan)
        if steps is not None and not _is_float(ours.dtype):
            apart = steps.astype(np.float64)  # of 64-bit integers, float64 holds no differences
        if allowance.absolute is not None:
            near = apart <= allowance.absolute + allowance.relative * np.abs(x)
            outside = unmatched | (finite & ~near)
        elif allowance.ulps is not None and _is_float(ours.dtype):
            outside = unmatched | (finite & (steps > allowance.ulps))
        else:
            outside = np.ones(len(places), bool)

    def at(position: int, value: float) -> Extreme:
        return Extreme(value, int(places[position]), x[position].item(), y[position].item())

    def largest(values: Array) -> Extreme | None:
        if not finite.any():
            return None
        known = values if finite.all() else np.where(finite, values, 0)
        position = int(np.argmax(known))
        if not finite[position]:  # all are 0
            position = int(np.argmax(finite))
        return at(position, values[position].item())

    return Distance(
        differing=len(places),
        both_nan=int(both_nan.sum()),
        unmatched=int(unmatched.sum()),
        outside=int(outside.sum()),
        max_abs=largest(apart),
        max_ulp=largest(steps) if _is_float(ours.dtype) else None,
        first=at(0, 0.0),
        odd=at(int(np.argmax(unmatched)), 0.0) if unmatched.any() else None,
        difference=_norm(_only(finite, apart)),
    )


def _kinds(x: Array, y: Array, apart: Array) -> tuple[Array, Array]:
    """Which elements are finite, and which NaN, on both sides."""
    if np.isfinite(apart).all():  # so that both are, everywhere
        return np.ones(len(x), bool), np.zeros(len(x), bool)
    return np.isfinite(x) & np.isfinite(y), np.isnan(x) & np.isnan(y)


def _only(chosen: Array, values: Array) -> Array:
    """The chosen ones, not copied where all are."""
    return values if chosen.all() else values[chosen]


def _is_float(element: np.dtype[Any]) -> bool:
    return element.kind not in "iub"


def _bits(values: Array) -> Array:
    if values.dtype.kind == "c":
        return values.view(f"u{values.itemsize // 2}").reshape(-1, 2)
    return values.view(f"u{values.itemsize}")


def _widened(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _norm(values: Array) -> Norm:
    parts = values.view(np.float64)
    scale = max(float(parts.max(initial=0.0)), -float(parts.min(initial=0.0)))
    if scale == 0 or math.isinf(scale):
        return Norm(scale, float(scale > 0))
    if not _SQUARABLE[0] < scale < _SQUARABLE[1]:
        parts = parts / scale
    else:
        scale = 1.0
    # No np.dot: BLAS has threads of its own, which wait for one another by spinning.
    return Norm(scale, float(np.einsum("i,i->", parts, parts)))


def _steps(ours: Array, theirs: Array) -> Array:
    """Steps between neighbouring values, as unsigned integers as wide as the type; of complex
    numbers, of the part that is farther apart. Of no meaning where one is not finite."""
    if ours.dtype.kind == "c":
        part = np.dtype(f"<f{ours.itemsize // 2}")
        halves = _steps(ours.view(part), theirs.view(part)).reshape(-1, 2)
        farther: Array = halves.max(axis=1, initial=0)
        return farther
    x, y = _ordered(ours), _ordered(theirs)
    unsigned = f"u{ours.itemsize}"  # where a difference always fits
    steps: Array = np.maximum(x, y).view(unsigned)
    steps -= np.minimum(x, y).view(unsigned)
    return steps


def _ordered(values: Array) -> Array:
    """Integers as wide as the type, in the order of the values, neighbours next to one another."""
    if values.dtype.kind in "iu":
        return values
    if values.dtype.kind == "b" or values.dtype.name == _UNSIGNED:
        return values.view(np.uint8)
    bits = values.view(f"i{values.itemsize}")
    width = 8 * values.itemsize - 1
    negative = bits >> width  # -1 or 0
    ordered: Array = negative & bits.dtype.type((1 << width) - 1)
    ordered ^= bits
    ordered -= negative
    return ordered
