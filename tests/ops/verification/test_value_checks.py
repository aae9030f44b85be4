from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.ops.verification.value_checks import is_exact_in, is_mask
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

from .damage import SMALL

INF = np.inf
CAUSAL = np.triu(np.full((300, 300), -INF, np.float32), 1)
SPOILED = np.where(np.arange(90_000) == 80_000, 0.5, CAUSAL.reshape(-1)).astype(np.float32)
MANY = np.ones(300_000, np.float32)
LAST = np.append(MANY, np.float32(1 + 2**-20))
W = Key("w", "param")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (CAUSAL, True),
        (CAUSAL.astype(np.float16), True),
        (np.array([1, INF, -INF, 1], np.float64), True),
        (np.array([-INF, -INF], np.float32), True),
        (SPOILED, False),
        (np.array([0.5, 0.25, INF], np.float32), False),
        (np.array([0, -INF, np.nan], np.float32), False),
    ],
)
def test_a_mask_has_one_finite_number(tmp_path: Path, values: np.ndarray, expected: bool) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": values, "other": np.ones(3, np.float32)}, file)
    assert is_mask(formats.read(file), W) is expected
    found = carry_out_verify(prepare_verify(file), budget=SMALL)
    assert bool(found.findings) is not expected
    assert W in found.nonfinite


@pytest.mark.parametrize(
    ("values", "narrow", "expected"),
    [
        (MANY, BFLOAT16, True),
        (LAST, BFLOAT16, False),
        (np.array([0.0, -0.0, 65504, np.inf], np.float32), FLOAT16, True),
        (np.array([1e6], np.float32), FLOAT16, False),
        (np.array([1 + 2**-9], np.float16), BFLOAT16, False),
    ],
)
def test_every_value_must_come_back(
    tmp_path: Path, values: np.ndarray, narrow: DType, expected: bool
) -> None:
    save_file({"w": values}, tmp_path / "model.safetensors")
    checkpoint = formats.read(tmp_path / "model.safetensors")
    assert is_exact_in(checkpoint, W, narrow) is expected
