"""Exports of every golden DeepSpeed run, and each failure of DeepSpeed's own script set right.

`FAILURES` are cases in which `zero_to_fp32.py` of DeepSpeed 0.19.8 crashes, or writes a model that
is silently wrong; what it does stands beside each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden_files import DEEPSPEED
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.execute import MemoryBudget

# A pipeline without ZeRO has its weights in layer files, which name a tied layer by its place.
UNNAMED = "pipeline-z0-bf16-w2"
RUN_TYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
CASES = sorted(path.parent.name for path in DEEPSPEED.glob("*/truth.json"))
FAILURES = {
    "z1-fp32-w2-adapter": "frozen weights of stage 1 silently missing",
    "bf16-optimizer-w2": "BF16_Optimizer: 'is not a zero checkpoint'",
    "z0-bf16-w2": "stage 0: 'NoneType' is not iterable",
    "z0-fp32-w2": "stage 0: 'NoneType' is not iterable",
    "pipeline-z1-fp32-w4": "pipeline: NoneType has no items",
    "experts-z2-bf16-w2": "mixture of experts: 'not a model state checkpoint'",
    "tensor-parallel-z1-bf16-w4": "tensor parallel: expects 1 optimizer file and finds 2",
    "tensor-parallel-z2-fp32-w2": "tensor parallel: no merge exists",
    "z2-bf16-w2": "frozen weights in bf16 inside an fp32 export, tied ones refused by safetensors",
    "z3-bf16-w3-adapter": "frozen weights in bf16 inside an fp32 export",
    "z2-bf16-w2-bf16-masters": "bf16 masters exported as bf16",
    "z2-fp32-w2-legacy": "non-zip files cannot be mapped",
    "z3-bf16-w2-legacy": "non-zip files cannot be mapped",
    "z2-fp32-w2-leftovers": "files of a larger world size: wrong number of files",
}


def export(case: str, destination: Path, **options: Any) -> dict[str, Array]:
    path = DEEPSPEED / case / "checkpoint" / facts(case)["directory"]
    # Experts of AutoEP have names of their own, which --map-to hf makes the Hub's.
    names = not case.startswith("autoep")
    conversion = prepare_export(path, destination, Options(check_names=names, **options))
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    weights: dict[str, Array] = {}
    for file in destination.glob("*.safetensors"):
        weights |= load_file(file)
    return weights


def facts(case: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((DEEPSPEED / case / "truth.json").read_text())
    return said


def truth(case: str) -> dict[str, Array]:
    """Every weight and buffer that the files hold, as the engine had it, masters first."""
    said = facts(case)
    dropped = set(said["frozen"]) if said.get("exclude_frozen_parameters") else set()
    found = {}
    for name, values in load_file(DEEPSPEED / case / "truth.safetensors").items():
        weight, role = name.rsplit("|", 1)
        if role in ("param", "buffer") and weight not in dropped:
            # Without ZeRO only the run's own 16-bit weights have names; the masters have none.
            named = role == "param" and not said["stage"] and said["dtype"] in RUN_TYPES
            found[weight] = values.astype(RUN_TYPES[said["dtype"]]) if named else values
    return found


def is_float(values: Array) -> bool:
    return bool(values.dtype.kind == "f" or values.dtype == ml_dtypes.bfloat16)


@pytest.mark.parametrize("case", [case for case in CASES if case != UNNAMED])
def test_an_export_holds_every_weight_rounded(case: str, tmp_path: Path) -> None:
    exported = export(case, tmp_path / "out", dtype="bf16")
    expected = truth(case)
    assert set(exported) - set(expected) <= set(facts(case).get("aliases", {}))
    for name, values in expected.items():
        wanted = values.astype(ml_dtypes.bfloat16) if is_float(values) else values
        assert exported[name].dtype == wanted.dtype, name
        assert exported[name].tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("case", FAILURES, ids=lambda case: f"{case}: {FAILURES[case]}")
def test_what_deepspeeds_own_script_gets_wrong(case: str, tmp_path: Path) -> None:
    exported = export(case, tmp_path / "out", dtype="fp32", keep_aliases=True)
    said, expected = facts(case), truth(case)
    for alias, name in said.get("aliases", {}).items():
        if name in expected:
            assert exported[alias].tobytes() == exported[name].tobytes()
    for name, values in expected.items():
        wanted = values.astype(np.float32) if is_float(values) else values
        assert exported[name].dtype == wanted.dtype, name
        assert exported[name].tobytes() == wanted.tobytes(), name
