"""Distances against numpy and torch, and against counting through all values of a type."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrices import examples
from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.io.numeric.compare_values import (
    NOTHING,
    NOTHING_ODD,
    Allowance,
    Distance,
    Norm,
    ValueCounts,
    are_equal,
    array_distance,
    count_values,
    same_bytes,
)
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype

SMALL_FLOATS = [dtype for dtype in dtypes.DTYPES if dtype.is_float and dtype.bits <= 16]
WIDE_FLOATS = [dtypes.FLOAT32, dtypes.FLOAT64]


def apart(ours: Array, theirs: Array, allowance: Allowance = NOTHING) -> Distance:
    return array_distance(ours, theirs, 0, allowance)


def array(dtype: DType, *values: float) -> Array:
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_ulps_count_the_values_between(dtype: DType) -> None:
    patterns = np.arange(2**dtype.bits, dtype=f"u{dtype.itemsize}").view(numpy_dtype(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        finite = patterns[np.isfinite(patterns.astype(np.float64))]
    numbers = np.unique(finite.astype(np.float64))  # -0.0 and 0.0 are one
    rank = np.searchsorted(numbers, finite.astype(np.float64))
    generator = np.random.default_rng(1)
    for first, second in generator.integers(0, len(finite), (300, 2)):
        found = apart(finite[[first]], finite[[second]])
        steps = abs(int(rank[first]) - int(rank[second]))
        assert (found.max_ulp.value if found.max_ulp else 0) == steps


@pytest.mark.parametrize("dtype", WIDE_FLOATS, ids=str)
@pytest.mark.parametrize("start", [0.0, -0.0, 1.0, -1.0, 2.0**-149, -3.5e-310, 1e30])
@pytest.mark.parametrize("steps", [1, 2, 17])
def test_ulps_of_wide_types_are_steps_of_nextafter(dtype: DType, start: float, steps: int) -> None:
    ours = array(dtype, start)
    theirs = ours.copy()
    for _ in range(steps):
        theirs = np.nextafter(theirs, np.array(-np.inf, theirs.dtype))
    found = apart(ours, theirs)
    assert found.max_ulp is not None
    assert found.max_ulp.value == steps
    assert apart(ours, theirs, Allowance(ulps=steps)).outside == 0
    assert apart(ours, theirs, Allowance(ulps=steps - 1)).outside == 1


def test_the_farthest_of_a_type_are_counted_without_overflow() -> None:
    most = np.finfo(np.float64).max
    found = apart(np.array([-most]), np.array([most]))
    assert found.max_ulp is not None
    assert found.max_abs is not None
    assert found.max_ulp.value == 2 * np.array(most).view(np.int64).item()
    assert found.max_abs.value == math.inf
    whole = apart(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert whole.max_abs is not None
    assert (whole.max_abs.value, whole.max_ulp) == (float(2**64), None)


pairs = st.lists(
    st.tuples(st.floats(width=32), st.one_of(st.floats(width=32), st.none())),
    min_size=1,
    max_size=40,
)


def both(drawn: list[tuple[float, float | None]]) -> tuple[Array, Array]:
    """Two arrays, of which many elements are equal."""
    ours = np.array([a for a, _ in drawn], np.float32)
    theirs = np.array([a if b is None else b for a, b in drawn], np.float32)
    return ours, theirs


@given(pairs, st.floats(0, 1e6), st.floats(0, 10))
def test_abs_and_rel_are_those_of_numpy(
    drawn: list[tuple[float, float | None]], absolute: float, relative: float
) -> None:
    ours, theirs = both(drawn)
    found = apart(ours, theirs, Allowance(None, absolute, relative))
    wide = theirs.astype(np.float64), ours.astype(np.float64)
    near = np.isclose(*wide, rtol=relative, atol=absolute, equal_nan=True)
    assert found.outside == int((~near).sum())


@given(pairs)
def test_extremes_and_norms_are_those_of_numpy(drawn: list[tuple[float, float | None]]) -> None:
    ours, theirs = both(drawn)
    found = apart(ours, theirs)
    differs = ours.view("u4") != theirs.view("u4")
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    finite = differs & np.isfinite(x) & np.isfinite(y)
    assert (found.elements, found.differing) == (len(drawn), int(differs.sum()))
    assert found.both_nan == int((differs & np.isnan(x) & np.isnan(y)).sum())
    assert found.unmatched == found.differing - found.both_nan - int(finite.sum())
    if finite.any():
        assert found.max_abs is not None
        gaps = np.where(finite, np.abs(np.where(finite, x, 0) - np.where(finite, y, 0)), -1)
        assert (found.max_abs.value, found.max_abs.place) == (gaps.max(), int(gaps.argmax()))
        assert (found.max_abs.ours, found.max_abs.theirs) == (x[gaps.argmax()], y[gaps.argmax()])
        assert found.difference.value == pytest.approx(
            np.linalg.norm(x[finite] - y[finite]), rel=1e-12
        )
    else:
        assert found.max_abs is None
    assert found.norm.value == pytest.approx(np.linalg.norm(x[np.isfinite(x)]), rel=1e-12)


@given(pairs, st.integers(0, 40))
def test_the_parts_add_up_to_the_whole(drawn: list[tuple[float, float | None]], cut: int) -> None:
    ours, theirs = both(drawn)
    allowance = Allowance(ulps=3)
    parts = [
        array_distance(ours[part], theirs[part], part.start, allowance)
        for part in (slice(0, cut), slice(cut, None))
        if len(ours[part])
    ]
    total = sum(reversed(parts), Distance())
    whole = apart(ours, theirs, allowance)
    fields = ("elements", "differing", "both_nan", "unmatched", "outside", "max_abs", "max_ulp")
    for name in (*fields, "first", "first_unmatched"):
        assert repr(getattr(total, name)) == repr(getattr(whole, name)), name
    assert total.difference.value == pytest.approx(whole.difference.value, rel=1e-12)
    assert total.norm.value == pytest.approx(whole.norm.value, rel=1e-12)


@pytest.mark.torch
@settings(max_examples=examples(50))
@given(pairs, st.sampled_from(["float32", "float16", "bfloat16"]), st.floats(0, 1), st.floats(0, 1))
def test_isclose_of_torch_agrees(
    drawn: list[tuple[float, float | None]], name: str, absolute: float, relative: float
) -> None:
    import torch

    ours, theirs = (each.astype(np.float32) for each in both(drawn))
    tensors = [torch.from_numpy(each).to(getattr(torch, name)) for each in (ours, theirs)]
    element = numpy_dtype(dtypes.dtype_named(name))
    arrays = [each.view(torch.uint8).numpy().view(element) for each in tensors]
    wide = [each.to(torch.float64) for each in tensors]
    near = torch.isclose(wide[1], wide[0], rtol=relative, atol=absolute, equal_nan=True)
    found = apart(arrays[0], arrays[1], Allowance(None, absolute, relative))
    assert found.outside == int((~near).sum())


def test_zeros_of_two_signs_have_other_bits_and_no_distance() -> None:
    found = apart(array(dtypes.FLOAT32, 1.0, 0.0), array(dtypes.FLOAT32, 1.0, -0.0))
    assert found.max_abs is not None
    assert found.max_ulp is not None
    assert (found.differing, found.max_abs.value, found.max_ulp.value) == (1, 0.0, 0)
    assert found.first is not None
    assert found.first.place == 1
    for allowance, outside in ((NOTHING, 1), (Allowance(ulps=0), 0), (Allowance(absolute=0.0), 0)):
        pair = array(dtypes.FLOAT32, 0.0), array(dtypes.FLOAT32, -0.0)
        assert apart(*pair, allowance).outside == outside


def test_nan_is_near_nan_alone_and_infinity_near_itself() -> None:
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    nan, one = array(dtypes.FLOAT32, math.nan), array(dtypes.FLOAT32, 1.0)
    infinite = array(dtypes.FLOAT32, math.inf)
    wide = Allowance(None, 1e300, 1e300)
    assert apart(nan, nan).differing == 0
    assert (apart(nan, other_nan).outside, apart(nan, other_nan).both_nan) == (1, 1)
    assert apart(nan, other_nan, wide).outside == 0
    assert apart(nan, one, wide).outside == apart(one, nan, wide).outside == 1
    assert apart(infinite, one, Allowance(ulps=2**40)).outside == 1
    assert apart(infinite, -infinite, wide).unmatched == 1
    assert apart(infinite, infinite.copy()).differing == 0


@pytest.mark.parametrize(
    "dtype",
    [each for each in dtypes.DTYPES if not each.is_float and "complex" not in each.name],
    ids=str,
)
def test_integers_have_differences_and_no_ulps(dtype: DType) -> None:
    ours, theirs = (np.array(v, numpy_dtype(dtype)) for v in ([0, 1, 1], [0, 1, 0]))
    found = apart(ours, theirs, Allowance(ulps=5))
    assert (found.differing, found.outside, found.max_ulp) == (1, 1, None)
    assert found.max_abs is not None
    assert (found.max_abs.value, found.max_abs.place) == (1.0, 2)
    assert apart(ours, theirs, Allowance(absolute=1.0)).outside == 0


@pytest.mark.parametrize("dtype", [dtypes.COMPLEX64, dtypes.COMPLEX128], ids=str)
def test_complex_numbers_are_as_far_as_their_parts(dtype: DType) -> None:
    ours = np.array([1 + 1j, 2 - 2j, complex(math.nan, 0)], numpy_dtype(dtype))
    theirs = np.array([1 + 1j, 2 + 2j, complex(math.nan, 0)], numpy_dtype(dtype))
    found = apart(ours, theirs)
    assert (found.elements, found.differing) == (3, 1)
    assert found.max_abs is not None
    assert found.max_ulp is not None
    assert (found.max_abs.value, found.max_abs.place) == (4.0, 1)
    part = np.array(2, f"f{dtype.itemsize // 2}").view(f"i{dtype.itemsize // 2}").item()
    assert found.max_ulp.value == 2 * part


def test_norms_neither_overflow_nor_vanish() -> None:
    large, small = np.full(4, 1e300), np.full(4, 1e-300)
    assert apart(large, 2 * large).norm.value == pytest.approx(2e300)
    assert apart(large, 2 * large).relative == pytest.approx(1.0)
    assert apart(small, 2 * small).relative == pytest.approx(1.0)
    assert (Norm(1e300, 4.0) + Norm(1e-300, 4.0)).value == pytest.approx(2e300)
    assert apart(np.zeros(2), np.ones(2)).relative is None


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 1001])
def test_bytes_are_equal_to_the_last(length: int) -> None:
    ours = np.arange(length, dtype=np.uint8)
    assert same_bytes(ours, ours.copy())
    for place in range(0, length, max(1, length // 9)):
        theirs = ours.copy()
        theirs[place] ^= 0x80
        assert not same_bytes(ours, theirs)
    if length:
        theirs = ours.copy()
        theirs[-1] ^= 1
        assert not same_bytes(ours, theirs)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 1001])
def test_one_byte_anywhere_makes_a_difference(length: int) -> None:
    ours = bytes(index % 251 for index in range(length))
    theirs = bytearray(ours)
    odd = memoryview(bytes(1) + ours)[1:]  # begins where no word does
    assert are_equal(ours, memoryview(theirs))
    assert are_equal(odd, np.frombuffer(ours, np.uint8))
    assert not are_equal(ours, ours + b"\0")
    for at in range(length):
        theirs[at] ^= 0x80
        assert not are_equal(ours, memoryview(theirs))
        theirs[at] ^= 0x80


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
