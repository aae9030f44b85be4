"""Statistics of the values in arrays: smallest, largest, sum, norm, counts, and a histogram.

The histogram counts magnitudes by powers of two, for each sign. Its bins do not depend on the
values, so one pass is enough, and histograms of parts can be added. It also shows which values a
dtype of fewer bits would lose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerotools.io.numeric.compare_values import BLOCK, NO_NORM, Norm, norm_of, widened
from zerotools.io.numeric.dtype_casts import Array

LEAST_EXPONENT, LARGEST_EXPONENT = -127, 128
"""The bins for magnitudes below 2**-126, and for those from 2**128 on."""
_BINS = LARGEST_EXPONENT - LEAST_EXPONENT + 1


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """A histogram of numbers other than 0. Element n of `negative` and of `positive` counts the
    numbers of this sign with a magnitude in [2**(first + n), 2**(first + n + 1)).
    """

    first: int = 0
    negative: tuple[int, ...] = ()
    positive: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueStatistics:
    """Statistics of `elements` numbers. For complex numbers, the real and imaginary parts count as
    separate numbers.

    `zeros`, `nans` and `infinities` are counts. `least`, `greatest`, `total` (the sum), `norm` and
    `magnitudes` are of the finite numbers. If no number is finite, `least` and `greatest` are None.
    """

    elements: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    least: float | None = None
    greatest: float | None = None
    total: float = 0.0
    norm: float = 0.0
    magnitudes: Magnitudes = Magnitudes()

    @property
    def finite(self) -> int:
        """The number of elements that are neither NaN nor infinite."""
        return self.elements - self.nans - self.infinities

    @property
    def mean(self) -> float | None:
        """The mean of the finite numbers; None if no number is finite, or if the sum overflows."""
        return self.total / self.finite if self.finite and math.isfinite(self.total) else None

    @property
    def rms(self) -> float | None:
        """The root of the mean square of the finite numbers; None if no number is finite."""
        return self.norm / math.sqrt(self.finite) if self.finite else None

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON, in the form of docs/reference/inspect-json.md."""
        found = self.magnitudes
        return {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "norm": self.norm if math.isfinite(self.norm) else None,
            "zeros": self.zeros,
            "nans": self.nans,
            "infinities": self.infinities,
            "histogram": {
                "first_exponent": found.first,
                "negative": list(found.negative),
                "positive": list(found.positive),
            },
        }


class StatisticsSum:
    """The statistics of numbers of one dtype that are added in parts. For a dtype of at most 16
    bits it counts how often each bit pattern occurs, and computes the statistics from the counts.
    """

    def __init__(self) -> None:
        self._elements = self._zeros = self._nans = self._infinities = 0
        self._least, self._greatest = math.inf, -math.inf
        self._total = 0.0
        self._norm: Norm = NO_NORM
        self._counts = np.zeros((2, _BINS), np.int64)
        self._patterns: Array | None = None
        self._narrow: np.dtype[Any] | None = None

    def add(self, values: Array) -> None:
        """Add the elements of a flat array, which may have any dtype of numpy or ml_dtypes."""
        if values.dtype.kind == "c":
            values = values.view(f"f{values.itemsize // 2}")
        self._elements += values.size
        if values.itemsize <= 2:
            bits = 8 * values.itemsize
            counts = np.bincount(values.view(f"u{values.itemsize}"), minlength=1 << bits)
            self._patterns = counts if self._patterns is None else self._patterns + counts
            self._narrow = values.dtype
            return
        for begin in range(0, values.size, BLOCK):
            self._add(values[begin : begin + BLOCK])

    def _add(self, values: Array) -> None:
        if values.dtype.kind == "f":
            is_finite = np.isfinite(values)
            if not is_finite.all():
                nans = int(np.count_nonzero(np.isnan(values)))
                self._nans += nans
                self._infinities += values.size - int(np.count_nonzero(is_finite)) - nans
                values = values[is_finite]
        if not values.size:
            return
        wide = widened(values, "ours")
        least, greatest = values.min().item(), values.max().item()
        self._bound(least, greatest)
        with np.errstate(over="ignore"):
            self._total += float(wide.sum())
        self._norm += norm_of(wide, float(max(abs(least), abs(greatest))))
        is_single = values.dtype == np.float32
        counts, zeros = _of_float32(values) if is_single else _of_float64(wide, None)
        self._counts += counts
        self._zeros += zeros

    def _bound(self, least: float, greatest: float) -> None:
        self._least, self._greatest = min(self._least, least), max(self._greatest, greatest)

    def _settle(self) -> None:
        """Add the statistics of the bit patterns that were counted since the last call."""
        patterns, narrow = self._patterns, self._narrow
        self._patterns = None
        if patterns is None or narrow is None:
            return
        places = np.flatnonzero(patterns)
        numbers = patterns[places]
        wide = places.astype(f"u{narrow.itemsize}").view(narrow).astype(np.float64)
        is_nan, is_infinite = np.isnan(wide), np.isinf(wide)
        self._nans += int(numbers[is_nan].sum())
        self._infinities += int(numbers[is_infinite].sum())
        is_finite = ~(is_nan | is_infinite)
        wide, numbers = wide[is_finite], numbers[is_finite]
        if not wide.size:
            return
        self._bound(wide.min().item(), wide.max().item())
        self._total += float((wide * numbers).sum())
        weighted = wide * np.sqrt(numbers)
        self._norm += norm_of(weighted, float(np.abs(weighted).max()))
        counts, zeros = _of_float64(wide, numbers)
        self._counts += counts
        self._zeros += zeros

    def merge(self, other: StatisticsSum) -> None:
        """Add all numbers that were added to `other`."""
        other._settle()
        self._elements += other._elements
        self._zeros += other._zeros
        self._nans += other._nans
        self._infinities += other._infinities
        self._bound(other._least, other._greatest)
        self._total += other._total
        self._norm += other._norm
        self._counts += other._counts

    def finished(self) -> ValueStatistics:
        """Return the statistics of all numbers that were added."""
        self._settle()
        is_empty = self._least > self._greatest
        return ValueStatistics(
            self._elements,
            self._zeros,
            self._nans,
            self._infinities,
            None if is_empty else self._least,
            None if is_empty else self._greatest,
            self._total,
            self._norm.value,
            _magnitudes(self._counts),
        )


def _of_float32(values: Array) -> tuple[Array, int]:
    """Return the histogram of finite numbers and the number of zeros."""
    bits = values.view(np.uint32)
    counts = np.bincount(bits >> 23, minlength=2 * _BINS).reshape(2, _BINS)[::-1].copy()
    if not counts[:, 0].any():
        return counts, 0
    zeros = bits.size - int(np.count_nonzero(bits << 1))
    negative = int(np.count_nonzero(bits == 1 << 31))
    counts[:, 0] -= negative, zeros - negative
    return counts, zeros


def _of_float64(wide: Array, numbers: Array | None) -> tuple[Array, int]:
    """Return the histogram of the finite numbers in `wide`, and the number of zeros.

    `numbers` says how often each element of `wide` occurs. If it is None, each occurs once.
    """
    is_some = wide != 0
    found = wide[is_some]
    times = None if numbers is None else numbers[is_some]
    bins = np.clip(np.frexp(found)[1] - 1 - LEAST_EXPONENT, 0, _BINS - 1) + _BINS * (found > 0)
    counts = np.bincount(bins, times, minlength=2 * _BINS).astype(np.int64)
    zeros = wide.size - found.size if numbers is None else int(numbers[~is_some].sum())
    return counts.reshape(2, _BINS), zeros


def _magnitudes(counts: Array) -> Magnitudes:
    filled = np.flatnonzero(counts.any(axis=0))
    if not filled.size:
        return Magnitudes()
    first, last = int(filled[0]), int(filled[-1])
    negative, positive = (tuple(row[first : last + 1].tolist()) for row in counts)
    return Magnitudes(first + LEAST_EXPONENT, negative, positive)
