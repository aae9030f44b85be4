from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.io.stores.far import put_directory, served
from tests.ops.quantised.models import BNB, FP8, STATE, fp8_tensors, nf4_tensors, plain, write
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.core.errors import BadFile
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.tile_workers import MemoryBudget
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


MXFP8 = {"quant_method": "mxfp8"}
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def _fp8(*, scale: float, is_empty: bool = False) -> dict[str, Array]:
    tensors = fp8_tensors()
    tensors["a.weight_scale_inv"][1, 1] = scale
    if is_empty:
        tensors["a.weight"][128:, 128:] = 0
    return tensors


def _mxfp8(exponent: int) -> dict[str, Array]:
    scales = np.full((4, 2), 120, np.uint8)
    scales[3, 1] = exponent
    weight = np.ones((4, 64), ml_dtypes.float8_e4m3fn)
    return {"a.weight": weight, "a.weight_scale_inv": scales, "norm.weight": plain(16)}


def _nvfp4(*, scale: float, whole: float) -> dict[str, Array]:
    scales = np.ones((4, 2), ml_dtypes.float8_e4m3fn)
    scales[0, 0] = scale
    return {
        "a.weight_packed": np.full((4, 16), 0x11, np.uint8),
        "a.weight_scale": scales,
        "a.weight_global_scale": np.array([whole], np.float32),
    }


def _nf4(largest: float) -> dict[str, Array]:
    tensors = nf4_tensors(STATE)
    tensors["a.weight.absmax"][-1] = largest
    return tensors


CASES: dict[str, tuple[Mapping[str, Array], Mapping[str, Any], str | None]] = {
    "fp8, sound": (fp8_tensors(), FP8, None),
    "fp8, 0 over elements": (_fp8(scale=0.0), FP8, "a scale of 0 for elements"),
    "fp8, 0 over zeros": (_fp8(scale=0.0, is_empty=True), FP8, None),
    "fp8, tiny": (_fp8(scale=1e-30), FP8, None),
    "mxfp8, sound": (_mxfp8(0), MXFP8, None),
    "mxfp8, no number": (_mxfp8(255), MXFP8, "the byte 255"),
    "nvfp4, sound": (_nvfp4(scale=1, whole=2), NVFP4, None),
    "nvfp4, 0 over elements": (_nvfp4(scale=0, whole=2), NVFP4, "a scale of 0 for"),
    "nvfp4, a global 0": (_nvfp4(scale=1, whole=0), NVFP4, "a global scale of 0"),
    "nf4, a block of zeros": (_nf4(0), BNB, None),
}


@pytest.mark.parametrize(("tensors", "settings", "said"), CASES.values(), ids=CASES)
def test_both_say_the_same(
    tensors: Mapping[str, Array], settings: Mapping[str, Any], said: str | None, tmp_path: Path
) -> None:
    model = write(tmp_path / "model", tensors, settings)
    findings = carry_out_verify(prepare_verify(model)).findings
    export = prepare_export(model, tmp_path / "out", Options(dtype="fp32"))
    if said is None:
        assert not findings
        perform_conversion(export, budget=MemoryBudget(), overwrite=False)
        return
    (finding,) = findings
    assert said in finding.message
    assert finding.tensor is not None
    assert finding.tensor.name.startswith("a.weight")
    with pytest.raises(BadFile, match=said):
        perform_conversion(export, budget=MemoryBudget(), overwrite=False)
    assert not carry_out_verify(prepare_verify(model), fast=True).findings


def test_the_bytes_that_are_no_numbers_are_found_once(tmp_path: Path) -> None:
    model = write(tmp_path / "model", _fp8(scale=float("nan")), FP8)
    (finding,) = carry_out_verify(prepare_verify(model)).findings
    assert "1 NaN" in finding.message


def test_of_several_parts_one_finds_it(tmp_path: Path) -> None:
    model = write(tmp_path / "model", _fp8(scale=0.0), FP8)
    found = [
        carry_out_verify(prepare_verify(model, part=OutputPart(at, 2))).findings for at in (1, 2)
    ]
    assert sum(map(len, found)) == 1


def test_in_a_store_it_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "model", _fp8(scale=0.0), FP8)
    with served(monkeypatch) as store:
        (finding,) = carry_out_verify(prepare_verify(put_directory(store, model, "model"))).findings
    assert "a scale of 0 for" in finding.message
