"""Statistics of arrays of every type agree with float64's, in any parts, and with torch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrices import examples
from zerotools.core.dtypes import DTYPES, DType, dtype_named
from zerotools.io.numeric.dtype_casts import numpy_dtype
from zerotools.io.numeric.value_statistics import (
    LARGEST_EXPONENT,
    LEAST_EXPONENT,
    StatisticsSum,
    ValueStatistics,
)


def of_parts(parts: list[Any]) -> ValueStatistics:
    total = StatisticsSum()
    for part in parts:
        own = StatisticsSum()
        own.add(part)
        total.merge(own)
    return total.finished()


def arrays(dtype: DType, data: bytes) -> Any:
    itemsize = dtype.itemsize
    if dtype.name == "bool":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data[: len(data) // itemsize * itemsize], numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=examples(60))
@given(data=st.binary(max_size=400), cut=st.integers(0, 100))
def test_they_are_those_of_float64(dtype: DType, data: bytes, cut: int) -> None:
    values = arrays(dtype, data)
    found = of_parts([values[:cut], values[cut:]])
    parts = values.view(f"f{values.itemsize // 2}") if values.dtype.kind == "c" else values
    with np.errstate(invalid="ignore", over="ignore"):
        wide = parts.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert found.elements == parts.size
    assert found.nans == np.count_nonzero(np.isnan(wide))
    assert found.infinities == np.count_nonzero(np.isinf(wide))
    assert found.zeros == np.count_nonzero(finite == 0)
    assert found.finite == finite.size
    if not finite.size:
        assert (found.least, found.greatest, found.mean, found.rms) == (None,) * 4
        return
    assert found.least == pytest.approx(finite.min(), rel=1e-15)
    assert found.greatest == pytest.approx(finite.max(), rel=1e-15)
    scale = float(np.abs(finite).max())
    if scale < 1e150:
        assert found.total == pytest.approx(math.fsum(finite), abs=1e-12 * scale * finite.size)
        expected = math.sqrt(math.fsum((finite / (scale or 1)) ** 2)) * scale
        assert found.norm == pytest.approx(expected, rel=1e-12)
    counted: dict[tuple[bool, int], int] = {}
    for value in finite[finite != 0]:
        exponent = math.frexp(value)[1] - 1
        bin_ = min(max(exponent, LEAST_EXPONENT), LARGEST_EXPONENT)
        counted[bool(value > 0), bin_] = counted.get((bool(value > 0), bin_), 0) + 1
    shown = {
        (sign, found.magnitudes.first + n): number
        for sign, row in ((False, found.magnitudes.negative), (True, found.magnitudes.positive))
        for n, number in enumerate(row)
        if number
    }
    assert shown == counted


def test_large_integers_are_exact() -> None:
    found = of_parts([np.array([2**63 - 1, -(2**63) + 1], np.int64)])
    assert (found.least, found.greatest) == (-(2**63) + 1, 2**63 - 1)


def test_the_norm_of_zeros_has_no_sign() -> None:
    assert str(of_parts([np.zeros(3, np.float32)]).norm) == "0.0"


def test_a_sum_that_overflows_has_no_mean() -> None:
    found = of_parts([np.full(9, 1e308)])
    assert found.mean is None
    assert found.to_json()["mean"] is None
    assert found.to_json()["norm"] is None


@pytest.mark.torch
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "int32"])
def test_they_are_those_of_torch(name: str) -> None:
    import torch

    torch.manual_seed(3)
    values = (torch.randn(200_001) * 20).to(getattr(torch, name))
    values[7] = 0
    raw = np.frombuffer(values.view(torch.uint8).numpy().tobytes(), numpy_dtype(dtype_named(name)))
    found = of_parts([raw[:70_000], raw[70_000:]])
    wide = values.double()
    assert (found.least, found.greatest) == (wide.min().item(), wide.max().item())
    assert found.mean == pytest.approx(wide.mean().item(), rel=1e-9)
    assert found.norm == pytest.approx(wide.norm().item(), rel=1e-12)
    assert found.zeros == int((wide == 0).sum())
