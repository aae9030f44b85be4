"""Every pair of types that can be asked for is cast to torch's bits."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.core.errors import Unsupported
from zerotools.io.numeric.dtype_casts import (
    Array,
    LostValues,
    cast_into,
    check_castable,
    numpy_cast,
    numpy_dtype,
)

FLOATS = [dtype for dtype in dtypes.DTYPES if dtype.is_float]
SCALES = dtypes.FLOAT8_E8M0FNU
PAIRS = [(a, b) for a, b in product(FLOATS, FLOATS) if a != b and b != SCALES]


def every_pattern(dtype: DType) -> Array:
    return np.arange(2**dtype.bits, dtype=f"u{dtype.itemsize}").view(numpy_dtype(dtype))


def around_the_edges(source: DType, target: DType) -> Array:
    """Of a wide type: the numbers of the target and the middles between them, each with what lies
    just beside it in the source, in float32 and in between."""
    narrow = target if target.bits <= 16 else dtypes.BFLOAT16
    numbers = every_pattern(narrow).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    ends = numbers[-1] * np.array([1.03, 1.04, 1.2, 1e3, np.inf, -1.04, -1e3, -np.inf, np.nan])
    kept = [numbers, middles, ends]
    steps = (2.0**-23, 2.0**-24, 2.0**-25, 2.0**-30, 2.0**-52)
    kept += [middles * (1 + sign * step) for sign in (1, -1) for step in steps]
    with np.errstate(over="ignore"):
        return np.concatenate(kept).astype(numpy_dtype(source))


def values_of(source: DType, target: DType) -> Array:
    return every_pattern(source) if source.bits <= 16 else around_the_edges(source, target)


def bits(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


def cast(source: Array, target: DType) -> Array:
    result = np.empty(source.shape, numpy_dtype(target))
    numpy_cast(result, source)
    return result


@pytest.mark.torch
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda dtype: str(dtype))
def test_equal_to_torchs_bit_for_bit(source: DType, target: DType) -> None:
    torch = pytest.importorskip("torch")
    with np.errstate(all="ignore"):
        values = values_of(source, target)
        ours = cast(values, target)
        raw = torch.from_numpy(values.view("u1")).view(getattr(torch, source.name))
        theirs = raw.to(getattr(torch, target.name)).view(torch.uint8).numpy()
        theirs = theirs.view(numpy_dtype(target))
        nan = np.isnan(values.astype(np.float64))
        assert np.array_equal(bits(ours)[~nan], bits(theirs)[~nan])
        assert np.isnan(ours[nan].astype(np.float64)).all()
    assert values.size > 200


# (source, its value, target, the bits that torch 2.13 gives)
TABLE: tuple[tuple[DType, float, DType, int], ...] = (
    # Just above the middle of two float16: float32 cannot tell it from the middle.
    (dtypes.FLOAT64, 1 + 2**-11 + 2**-40, dtypes.FLOAT16, 0x3C00),
    (dtypes.FLOAT64, 1 + 2**-11 + 2**-20, dtypes.FLOAT16, 0x3C01),
    (dtypes.FLOAT64, 65520 - 2**-30, dtypes.FLOAT16, 0x7C00),
    (dtypes.FLOAT64, 65519.99, dtypes.FLOAT16, 0x7BFF),
    (dtypes.FLOAT64, 1 + 2**-8 + 2**-40, dtypes.BFLOAT16, 0x3F80),
    (dtypes.FLOAT32, 500.0, dtypes.FLOAT8_E4M3FN, 0x7E),
    (dtypes.FLOAT32, -500.0, dtypes.FLOAT8_E4M3FN, 0xFE),
    (dtypes.FLOAT32, np.inf, dtypes.FLOAT8_E4M3FN, 0x7E),
    (dtypes.FLOAT16, 464.0, dtypes.FLOAT8_E4M3FN, 0x7E),
    (dtypes.FLOAT32, 2.0**-10, dtypes.FLOAT8_E4M3FN, 0x00),
    (dtypes.FLOAT32, 61440.0, dtypes.FLOAT8_E5M2, 0x7C),
    (dtypes.FLOAT32, 61439.0, dtypes.FLOAT8_E5M2, 0x7B),
    (dtypes.FLOAT32, 248.0, dtypes.FLOAT8_E4M3FNUZ, 0x80),
    (dtypes.FLOAT8_E5M2, 512.0, dtypes.FLOAT8_E4M3FN, 0x7E),
    (dtypes.FLOAT8_E8M0FNU, 2.0**-127, dtypes.FLOAT32, 0x00400000),
)


@pytest.mark.parametrize(("source", "value", "target", "wanted"), TABLE)
def test_what_torch_gives_is_known_without_it(
    source: DType, value: float, target: DType, wanted: int
) -> None:
    assert bits(cast(np.array([value], numpy_dtype(source)), target))[0] == wanted
    assert bits(cast(np.array(value, numpy_dtype(source)), target)) == wanted


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda dtype: str(dtype))
def test_strides_and_blocks_change_nothing(source: DType, target: DType) -> None:
    with np.errstate(all="ignore"):
        values = np.resize(values_of(source, target), 2 * 3 * 100).reshape(2, 3, 100)
        result = np.zeros((100, 3, 2), numpy_dtype(target))
        losses = cast_into(result.T, values)
        assert np.array_equal(bits(result.T.copy()), bits(cast(values.copy(), target)))
        assert losses == cast_into(np.empty(values.shape, numpy_dtype(target)), values)


def test_a_large_float64_is_cast_in_blocks() -> None:
    values = np.full((3, 2**18), 1 + 2**-11 + 2**-40)
    assert set(bits(cast(values, dtypes.FLOAT16)).ravel().tolist()) == {0x3C00}


@pytest.mark.parametrize(
    ("target", "values", "wanted"),
    [
        (dtypes.FLOAT8_E4M3FN, [448, 464, 465, -1e9, np.inf, np.nan], LostValues(2, 1e9, 1, 1)),
        (dtypes.FLOAT8_E5M2, [57344, 61440, np.inf, np.nan], LostValues(1, 61440.0, 1, 1)),
        (dtypes.FLOAT8_E4M3FNUZ, [240, 248, np.inf, np.nan], LostValues(1, 248.0, 1, 1)),
        (dtypes.FLOAT8_E5M2FNUZ, [57344, -1e6], LostValues(1, 1e6)),
    ],
    ids=str,
)
def test_overflow_to_8_bits_is_counted(
    target: DType, values: list[Any], wanted: LostValues
) -> None:
    source = np.array(values, np.float32)
    assert cast_into(np.empty(source.shape, numpy_dtype(target)), source) == wanted
    assert cast_into(np.empty((2, 1), numpy_dtype(target)), np.ones((2, 1), np.float32)) == (
        LostValues()
    )


@pytest.mark.parametrize("source", [dtype for dtype in FLOATS if dtype != SCALES], ids=str)
def test_a_type_for_scales_is_not_cast_to(source: DType) -> None:
    with pytest.raises(Unsupported, match="has only powers of two"):
        check_castable(source, SCALES)
