"""torch's kernel gives the bits that numpy's cast gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.io.numeric.dtype_casts import Array, cast_into, numpy_cast, numpy_dtype
from zerotools.io.numeric.torch_float16_cast import (
    NUMPY_SECONDS_PER_ELEMENT,
    TORCH_IMPORT_SECONDS,
    WORTHWHILE,
    cast_for,
    torch_cast,
)

ENOUGH = int(WORTHWHILE * TORCH_IMPORT_SECONDS / NUMPY_SECONDS_PER_ELEMENT) + 1


def patterns() -> Array:
    """Every float32 by its first 20 bits, which hold sign, exponent, the 10 bits that float16 keeps
    and the bit that decides the rounding, with rests of zero, the least, and all ones."""
    heads = np.arange(2**20, dtype=np.uint32) << 12
    return np.concatenate([heads, heads | 1, heads | 0xFFF]).view(np.float32)


def by_numpy(values: Array) -> Array:
    result = np.empty(values.shape, np.float16)
    numpy_cast(result, values)
    return result


@pytest.mark.torch
def test_all_patterns_are_equal_bit_for_bit() -> None:
    pytest.importorskip("torch")
    values = patterns()
    wanted, found = by_numpy(values), np.empty(values.shape, np.float16)
    torch_cast()(found, values)
    nan = np.isnan(wanted)
    assert np.array_equal(found[~nan].view(np.uint16), wanted[~nan].view(np.uint16))
    assert np.isnan(found[nan]).all()
    assert nan.sum() > 5000


@pytest.mark.torch
def test_strides_scalars_and_losses() -> None:
    pytest.importorskip("torch")
    cast = torch_cast()
    values = np.linspace(-7e4, 7e4, 60, dtype=np.float32).reshape(6, 10)
    found = np.zeros((10, 6), np.float16)
    losses = cast_into(found.T, values, cast)
    assert np.array_equal(found.T, by_numpy(values))
    assert losses == cast_into(np.zeros((6, 10), np.float16), values)
    assert losses.overflowed == int(np.isinf(found).sum()) > 0
    scalar = np.zeros((), np.float16)
    cast(scalar, np.array(1.5, np.float32))
    assert scalar == 1.5


@pytest.mark.torch
def test_other_types_are_cast_by_numpy() -> None:
    pytest.importorskip("torch")
    found = np.zeros(3, numpy_dtype(dtypes.BFLOAT16))
    torch_cast()(found, np.array([1.0, 2.5, -3.0], np.float32))
    assert found.astype(np.float32).tolist() == [1.0, 2.5, -3.0]


def test_little_work_is_numpys() -> None:
    assert cast_for(ENOUGH - 2, 1) is numpy_cast
    assert cast_for(2 * (ENOUGH - 2), 2) is numpy_cast


@pytest.mark.torch
def test_much_work_is_torchs_and_little_does_not_import_it() -> None:
    pytest.importorskip("torch")
    assert cast_for(ENOUGH, 1) is not numpy_cast
    script = (
        "import sys; from zerotools.io.numeric.torch_float16_cast import cast_for;"
        "cast_for(1000, 1);"
        f"assert 'torch' not in sys.modules; cast_for({ENOUGH}, 1); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
