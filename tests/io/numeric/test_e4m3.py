"""The cast by bits is ml_dtypes' for every number that it takes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from zerotools.io.numeric.e4m3 import to_e4m3
from zerotools.io.numeric.numpy_dtypes import Array


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
