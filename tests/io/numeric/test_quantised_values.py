"""What schemes compute: the same for a part as for the whole. `tests/ops/quantised/test_peers.py`
compares with the formats' own libraries."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.scaled_casts import boxes_in, drawn_casts
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.errors import BadFile
from zerotools.core.quantisation_schemes import (
    CODE,
    GLOBAL_SCALE,
    PAYLOAD,
    SCALES,
    VALUES,
    BlockQuantised,
    BlockScaled,
    CodedFourBit,
    PackedFourBit,
)
from zerotools.core.scaled_cast import ScaledCast
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.io.numeric.quantised_values import to_e4m3, values_of

E4M3 = dtypes.FLOAT8_E4M3FN


def numbers(cast: ScaledCast, seed: int) -> dict[str, Array]:
    """Inputs of a cast that it takes: finite, and no scale of 0."""
    draw = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, tensor in cast.inputs.items():
        if tensor.dtype == dtypes.FLOAT32:
            found[name] = (draw.random(tensor.shape) + 0.5).astype(np.float32)
        else:
            most = 127 if tensor.dtype == E4M3 else 200
            raw = draw.integers(0, most, tensor.shape, dtype=np.uint8)
            found[name] = raw.view(numpy_dtype(tensor.dtype))
    return found


@given(st.data())
def test_a_part_is_what_the_whole_has_there(data: st.DataObject) -> None:
    cast: ScaledCast = data.draw(drawn_casts)
    inputs = numbers(cast, data.draw(st.integers(0, 9)))
    whole = Box.whole(cast.shape)
    expected = values_of(cast.scheme, whole, inputs, cast.dtype)
    assert expected.shape == cast.shape
    box = data.draw(boxes_in(cast.shape))
    needed = cast.scheme.needs(box)
    parts = {
        name: inputs[name][tuple(map(slice, each.start, each.stop))].copy()
        for name, each in needed.items()
    }
    found = values_of(cast.scheme, box, parts, cast.dtype)
    inside = expected[tuple(map(slice, box.start, box.stop))]
    assert found.dtype == inside.dtype
    assert found.tobytes() == inside.tobytes()


@given(st.integers(0, 99))
def test_blocks_against_one_loop(seed: int) -> None:
    draw = np.random.default_rng(seed)
    payload = draw.integers(-127, 128, (5, 7)).astype(np.int8)
    scales = draw.random((3, 3), np.float32)
    scheme = BlockScaled((2, 3), (0, 1))
    inputs = {PAYLOAD: payload, SCALES: scales}
    found = values_of(scheme, Box.whole((5, 7)), inputs, dtypes.FLOAT32)
    for row in range(5):
        for column in range(7):
            expected = np.float32(payload[row, column]) * scales[row // 2, column // 3]
            assert found[row, column] == expected


def test_every_payload_is_what_ml_dtypes_says() -> None:
    for name in ("float8_e4m3fn", "float8_e5m2", "int8"):
        element = numpy_dtype(dtypes.dtype_named(name))
        payload = np.arange(256, dtype=np.uint8).view(element)[:255]
        inputs = {PAYLOAD: payload, SCALES: np.ones(1, np.float32)}
        found = values_of(BlockScaled((255,), (None,)), Box.whole((255,)), inputs, dtypes.FLOAT32)
        np.testing.assert_array_equal(found, payload.astype(np.float32))


BLOCK = BlockScaled((2,), (0,))
FOURS = PackedFourBit(4, is_exponent=False)
NAMED: dict[str, tuple[BlockScaled | PackedFourBit | CodedFourBit, dict[str, Array], str]] = {
    "an infinite scale": (
        BLOCK,
        {PAYLOAD: np.ones(4, np.int8), SCALES: np.array([1, np.inf], np.float32)},
        "not finite",
    ),
    "a scale that is NaN": (
        BLOCK,
        {PAYLOAD: np.ones(4, np.int8), SCALES: np.array([np.nan, 1], np.float32)},
        "not finite",
    ),
    "a scale of 0": (
        BLOCK,
        {PAYLOAD: np.ones(4, np.int8), SCALES: np.array([1, 0], np.float32)},
        "scale of 0 for",
    ),
    "an exponent that is NaN": (
        BlockScaled((2,), (0,), is_exponent=True),
        {PAYLOAD: np.ones(4, np.int8), SCALES: np.array([127, 255], np.uint8)},
        "byte 255",
    ),
    "a global scale of 0": (
        FOURS,
        {
            PAYLOAD: np.ones(2, np.uint8),
            SCALES: np.ones(1, np.float32),
            GLOBAL_SCALE: np.zeros(1, np.float32),
        },
        "global scale of 0",
    ),
    "a small scale of 0": (
        FOURS,
        {
            PAYLOAD: np.ones(2, np.uint8),
            SCALES: np.zeros(1, np.float32),
            GLOBAL_SCALE: np.ones(1, np.float32),
        },
        "scale of 0 for",
    ),
    "a code that is NaN": (
        CodedFourBit((4,), 4),
        {
            PAYLOAD: np.ones((2, 1), np.uint8),
            SCALES: np.ones(1, np.float32),
            CODE: np.full(16, np.nan, np.float32),
        },
        "not finite",
    ),
}


@pytest.mark.parametrize(("scheme", "inputs", "said"), NAMED.values(), ids=NAMED)
def test_scales_that_mean_nothing_are_refused(
    scheme: BlockScaled, inputs: dict[str, Array], said: str
) -> None:
    with pytest.raises(BadFile, match=said):
        values_of(scheme, Box.whole((4,)), inputs, dtypes.FLOAT32)


def test_a_scale_of_0_over_nothing_but_0_is_taken() -> None:
    inputs = {PAYLOAD: np.array([1, 1, 0, 0], np.int8), SCALES: np.array([2, 0], np.float32)}
    found = values_of(BLOCK, Box.whole((4,)), inputs, dtypes.FLOAT32)
    assert found.tolist() == [2, 2, 0, 0]


def _quantise(values: Array, *, is_scales: bool, is_exponent: bool = False) -> Array:
    scheme = BlockQuantised(values.shape, (1, 4), is_scales, is_exponent)
    size = (values.shape[0], -(-values.shape[1] // 4)) if is_scales else values.shape
    return values_of(scheme, Box.whole(size), {VALUES: values}, E4M3)


@pytest.mark.parametrize("is_exponent", [False, True])
@pytest.mark.parametrize("largest", [1e-45, 1e-40, 1e-30, 1.0, 3e38])
def test_every_magnitude_comes_back_near(largest: float, is_exponent: bool) -> None:
    values = np.array([[largest, -largest / 2, largest / 4, 0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        payload = _quantise(values, is_scales=False, is_exponent=is_exponent)
        scales = _quantise(values, is_scales=True, is_exponent=is_exponent)
    assert np.isfinite(payload.astype(np.float32)).all()
    inputs = {PAYLOAD: payload, SCALES: scales}
    scheme = BlockScaled((1, 4), (0, 1), is_exponent=is_exponent)
    back = values_of(scheme, Box.whole((1, 4)), inputs, dtypes.FLOAT32)
    # below the smallest scale, of 2**-126, steps are 2**-9 of that
    np.testing.assert_allclose(back, values, rtol=0.07, atol=2.0**-134)


def test_zeros_get_a_scale_of_1() -> None:
    values = np.zeros((1, 4), np.float32)
    assert _quantise(values, is_scales=True).tolist() == [[1.0]]
    assert _quantise(values, is_scales=True, is_exponent=True).tolist() == [[127]]
    assert _quantise(values, is_scales=False).view(np.uint8).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_quantised(bad: float) -> None:
    values = np.array([[1, 2, bad, 4]], np.float32)
    for is_scales in (False, True):
        with pytest.raises(BadFile, match="has NaN or infinite values"):
            _quantise(values, is_scales=is_scales)


def test_halves_are_rounded_to_even() -> None:
    values = np.array([[448, 17, 19, 21]], ml_dtypes.bfloat16)
    assert _quantise(values, is_scales=False).astype(np.float32).tolist() == [[448, 16, 20, 20]]


def _expected(values: Array) -> bytes:
    return values.astype(ml_dtypes.float8_e4m3fn).tobytes()


def test_numbers_the_middles_between_them_and_what_is_beside_those() -> None:
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    exact = np.sort(every[np.isfinite(every)])
    middles = (exact[1:] + exact[:-1]) / 2
    near = [np.nextafter(middles, np.float32(to)) for to in (-1e9, 1e9)]
    values = np.concatenate([every[np.isfinite(every)], middles, *near]).astype(np.float32)
    assert to_e4m3(values).tobytes() == _expected(values)


def test_numbers_of_every_size() -> None:
    bits = np.arange(0, 2**32, 65_521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = bits[np.abs(np.nan_to_num(bits, nan=1e9)) <= 448]
    assert values.size > 30_000
    assert to_e4m3(values).tobytes() == _expected(values)
