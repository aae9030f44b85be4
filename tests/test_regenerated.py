"""What passes for a golden case made again on another processor, and what does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden_files import DEEPSPEED
from tests.regenerated import differences

CASE = DEEPSPEED / "z2-fp32-w2"


@pytest.fixture
def again(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "again"))


def change(again: Path, name: str, by: float) -> None:
    tensors = load_file(again / "truth.safetensors")
    tensors[name] = np.asarray(tensors[name] + np.float32(by))
    save_file(dict(sorted(tensors.items())), again / "truth.safetensors")


def test_the_case_itself_and_one_with_other_last_bits(again: Path) -> None:
    assert differences(again, CASE) == []
    change(again, "layer.weight|exp_avg", 1e-9)
    assert differences(again, CASE) == []


@pytest.mark.parametrize(
    ("name", "by"),
    [("layer.weight|param", 1e-4), ("layer.bias|exp_avg_sq", 1e-7), ("cube.weight|step", 1e-6)],
)
def test_values_that_are_another_training_s(again: Path, name: str, by: float) -> None:
    change(again, name, by)
    [said] = differences(again, CASE)
    assert name in said


def test_other_names_types_and_facts(again: Path) -> None:
    tensors = load_file(again / "truth.safetensors")
    tensors["layer.bias|param"] = tensors["layer.bias|param"].astype(np.float64)
    save_file(tensors, again / "truth.safetensors")
    facts = json.loads((again / "truth.json").read_text())
    (again / "truth.json").write_text(json.dumps({**facts, "global_steps": 3}))
    assert differences(again, CASE) == [
        "truth.json says other things",
        "truth.safetensors: layer.bias|param is float64(13,)",
    ]


def test_another_checkpoint(again: Path) -> None:
    other = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
    shutil.rmtree(again / "checkpoint")
    shutil.copytree(other, again / "checkpoint")
    assert any(
        said.startswith(("checkpoint: ", "other files")) for said in differences(again, CASE)
    )
    shutil.rmtree(again / "checkpoint")
    [said] = differences(again, CASE)
    assert said.startswith("other files: ")
