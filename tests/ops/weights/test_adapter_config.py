from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ops.exports import model, noise
from zerotools import formats
from zerotools.core.adapter_tensor_names import adapter_tensors
from zerotools.core.errors import BadFile, Unsupported
from zerotools.ops.weights.adapter_config import choose_config, scale_of

HALVES = {"q.lora_A.default.weight": noise(2, 6), "q.lora_B.default.weight": noise(4, 2)}


@pytest.mark.parametrize(
    ("r", "alpha"),
    [
        *((8, bad) for bad in ("NaN", "Infinity", "-Infinity", "1e999", "true", '"16"', "null")),
        *((bad, "16") for bad in (0, -1, "NaN", "Infinity", "true", "null")),
    ],
)
def test_numbers_that_no_adapter_is_scaled_by_are_refused(r: Any, alpha: str) -> None:
    text = f'{{"r": {r}, "lora_alpha": {alpha}}}'
    with pytest.raises(
        BadFile, match=r"has r .* and lora_alpha .* for q_proj: they must be finite"
    ):
        scale_of(json.loads(text), "q_proj")


def test_a_pattern_may_say_another_number() -> None:
    config = json.loads('{"r": 8, "lora_alpha": 16, "alpha_pattern": {"v_proj": NaN}}')
    assert scale_of(config, "layers.0.q_proj") == 2
    with pytest.raises(BadFile, match=r"lora_alpha nan for layers\.0\.v_proj"):
        scale_of(config, "layers.0.v_proj")


def chosen(directory: Path) -> dict[str, Any]:
    held = formats.read(directory)
    return choose_config(held, None, None, adapter_tensors(held.tensors, None, directory))[0]


@pytest.mark.parametrize(
    ("name", "text", "scale"),
    [
        ("run_config.yaml", "peft:\n  _target_: a.LoRA\n  dim: 2\n  alpha: 8\n", 4.0),
        ("args.json", '{"lora_rank": 4, "lora_alpha": 8, "use_rslora": true}', 4.0),
        ("args.json", '{"lora_rank": 4, "lora_alpha": 8, "use_rslora": false}', 2.0),
    ],
)
def test_the_records_of_other_programs_say_the_scale(
    name: str, text: str, scale: float, tmp_path: Path
) -> None:
    directory = model(tmp_path / "run", HALVES, **{name.replace(".", "__"): text})
    assert scale_of(chosen(directory), "q") == scale


def test_another_adapter_of_megatron_bridge_is_refused(tmp_path: Path) -> None:
    text = "peft:\n  _target_: megatron.bridge.peft.dora.DoRA\n  dim: 2\n  alpha: 8\n"
    directory = model(tmp_path / "run", HALVES, run_config__yaml=text)
    with pytest.raises(Unsupported, match="the section peft has the _target_ DoRA"):
        chosen(directory)
