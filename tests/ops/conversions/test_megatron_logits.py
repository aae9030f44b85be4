"""Real runs of Megatron-Core, cut over ranks of every kind, as models of the Hub: transformers
loads them and computes what Megatron computed, mixtures, latent attention and MTP included.

`logits.safetensors` of a case is Megatron's own forward pass in 32 bits. Sums are made in another
order there, so logits are compared within TOLERANCE of the largest, about 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.golden_files import GOLDEN
from tests.maps import oracles
from zerotools import formats
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

RUNS = GOLDEN / "megatron-core-0.16.1"
CASES = sorted(path.name for path in RUNS.glob("hub-*"))
TOLERANCE = 1e-6


def assert_moved(case: Path, out: Path, config: dict[str, Any]) -> None:
    """That Megatron's formulas make the run's own tensors of those on the Hub, bit by bit. Names of
    norms depend on the kind of layer, so tensors are known by their values: no two are alike."""
    made = oracles.megatron(load_file(out / "model.safetensors"), SimpleNamespace(**config))
    found = []
    for name, value in made.items():
        found += [*value] if ".experts.experts." in name else [value]
    truth = load_file(case / "truth.safetensors")
    rows = config["vocab_size"]
    wanted = [
        value[:rows] if name.startswith(("embedding.", "output_layer.")) else value
        for name, value in truth.items()
        if name.endswith("|param")
    ]
    assert sorted(each.tobytes() for each in found) == sorted(each.tobytes() for each in wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_run_computes_on_the_hub_what_megatron_computed(case: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    config = json.loads((RUNS / case / "config.json").read_text())
    wanted = consolidate.Options(dtype="fp32", mapping=MapRequest(to="hf"))
    source, out = RUNS / case / "checkpoint", tmp_path / "out"
    conversion = consolidate.prepare_export(source, out, wanted, config_dir=RUNS / case)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    assert_moved(RUNS / case, out, config)
    has_mtp = bool(config.get("num_nextn_predict_layers"))
    names = {key.name for key in formats.read(out).tensors}
    assert has_mtp == ("model.layers.2.eh_proj.weight" in names)
    model, report = AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"]
    assert all(name.startswith("model.layers.2.") for name in report["unexpected_keys"])
    found = load_file(RUNS / case / "logits.safetensors")
    expected = {name: torch.from_numpy(value) for name, value in found.items()}
    with torch.no_grad():
        logits = model.eval()(expected["tokens"]).logits
    assert logits.shape == expected["logits"].shape
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=TOLERANCE)


def test_every_kind_of_model_that_megatron_has_is_here() -> None:
    kinds = {json.loads((RUNS / case / "config.json").read_text())["model_type"] for case in CASES}
    assert kinds == {
        "llama", "qwen2", "qwen3", "phi3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3",
        "glm4_moe", "gpt_oss",
    }  # fmt: skip
