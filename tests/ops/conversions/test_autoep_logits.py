"""Real runs of DeepSpeed's AutoEP as models of the Hub: transformers loads them and has the loss
that the engine had, and the moments go along."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden_files import DEEPSPEED
from tests.layouts import load
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

CASES = sorted(path.name for path in DEEPSPEED.glob("autoep-*"))
TOLERANCE = 1e-6
"""Of the loss, about 3.4: sums are made in another order here."""
_HUB = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def on_the_hub(case: str, role: str) -> dict[str, np.ndarray]:
    """What the live engine had of `role`, by the names of the Hub."""
    found: dict[str, np.ndarray] = {}
    for key, value in load_file(DEEPSPEED / case / "truth.safetensors").items():
        name, _, kind = key.rpartition("|")
        layer, _, weight = name.rpartition(".experts.")
        if kind != role:
            continue
        if layer:
            for number, each in enumerate(value):
                found[f"{layer}.experts.{number}.{_HUB[weight]}.weight"] = each
        else:
            found[name.replace(".router.gate.", ".gate.")] = value
    return found


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_a_model_of_the_hub_with_the_engines_loss(case: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    truth = json.loads((DEEPSPEED / case / "truth.json").read_text())
    wanted = consolidate.Options(dtype="fp32", mapping=MapRequest(to="hf"))
    source, out = DEEPSPEED / case / "checkpoint", tmp_path / "out"
    done = consolidate.prepare_export(source, out, wanted, config_dir=DEEPSPEED / case)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    exported = load_file(out / "model.safetensors")
    expected = on_the_hub(case, "param")
    assert {name: each.tobytes() for name, each in exported.items()} == {
        name: each.tobytes() for name, each in expected.items()
    }
    model, report = AutoModelForCausalLM.from_pretrained(
        out,
        output_loading_info=True,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    if truth["dtype"] == "fp32":
        tokens = torch.tensor(truth["tokens"])
        with torch.no_grad():
            loss = model.eval()(input_ids=tokens, labels=tokens).loss.item()
        assert loss == pytest.approx(truth["loss"], abs=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if "muon" not in case])
def test_moments_move_with_their_experts(case: str, tmp_path: Path) -> None:
    done = convert.prepare_convert(
        DEEPSPEED / case / "checkpoint",
        tmp_path / "out",
        "dcp",
        {"world_size": 2},
        config_dir=DEEPSPEED / case,
        mapping=MapRequest(to="hf"),
    )
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    there = formats.read(tmp_path / "out")
    for role in ("param", "exp_avg", "exp_avg_sq"):
        for name, values in on_the_hub(case, role).items():
            assert load(there, Key(name, role)).tobytes() == values.tobytes(), (name, role)


def test_there_are_cases_of_every_stage() -> None:
    assert {case.split("-")[1] for case in CASES} == {"z1", "z2", "z3", "universal"}
