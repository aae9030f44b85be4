"""Real runs of Megatron-Core as models of the Hub, by `--map-to hf`, with their optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.golden_files import GOLDEN
from tests.maps import oracles
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.errors import BadRequest
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

RUNS = GOLDEN / "megatron-core-0.16.1"
DENSE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 30,  # which the run has padded to 32
}
EXPERTS = {**DENSE, "model_type": "mixtral", "intermediate_size": 12, "num_local_experts": 4}
NORMS = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "mlp.pre_mlp_layernorm.weight": "pre_mlp_layernorm.weight",
}
TO_HUB = MapRequest(to="hf")


def config_dir(tree: Mapping[str, Any], where: Path) -> Path:
    where.mkdir(exist_ok=True)
    (where / "config.json").write_text(json.dumps(tree))
    return where


def arrays(path: Path, role: str) -> dict[str, np.ndarray]:
    """The tensors of a role in 32 bits, by name."""
    checkpoint = formats.read(path)
    wanted = {key: dtypes.FLOAT32 for key in checkpoint.tensors if key.role == role}
    return {key.name: array for key, array in load_tensors(checkpoint, wanted).items()}


def as_oracles_have_it(held: dict[str, np.ndarray], vocabulary: int) -> dict[str, np.ndarray]:
    """Without padding, the experts of a layer in one, and norms under the names of the maps."""
    made: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    has_experts = any(".router." in name for name in held)
    for name, value in held.items():
        prefix, found, rest = name.partition(".mlp.experts.local_experts.")
        if found:
            number, _, kind = rest.partition(".")
            experts.setdefault(f"{prefix}.mlp.experts.experts.{kind}", []).append(value)
            assert len(experts[f"{prefix}.mlp.experts.experts.{kind}"]) == int(number) + 1
            continue
        if name.startswith(("embedding.", "output_layer.")):
            value = value[:vocabulary]
        name = name.replace("input_layernorm.weight", NORMS["input_layernorm.weight"])
        old, new = "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"
        old, new = (old, new) if has_experts else (new, old)
        made[name.replace(old, new)] = value
    return made | {name: np.stack(values) for name, values in experts.items()}


def compare(source: Path, out: Path, role: str, hub_role: str, tree: Mapping[str, Any]) -> None:
    config = SimpleNamespace(**tree)
    hub, held = arrays(out, hub_role), dict(sorted(arrays(source, role).items()))
    made = oracles.megatron(hub, config)
    wanted = as_oracles_have_it(held, int(tree["vocab_size"]))
    assert made.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.array_equal(made[name], value), name


@pytest.mark.parametrize(
    ("case", "tree"),
    [
        ("dense-tp2-pp2", DENSE),
        ("singleton-tp2", DENSE),
        ("legacy-tp2-pp2", {**DENSE, "tie_word_embeddings": True}),
        ("moe-ep2-tp2", EXPERTS),
        ("moe-singleton-ep2", EXPERTS),
        ("legacy-moe-ep2-tp2", EXPERTS),
    ],
)
def test_a_run_becomes_a_model_of_the_hub(
    case: str, tree: Mapping[str, Any], tmp_path: Path
) -> None:
    source, out = RUNS / case / "checkpoint", tmp_path / "out"
    wanted = consolidate.Options(dtype="bf16", mapping=TO_HUB)
    base = config_dir(tree, tmp_path / "base")
    conversion = consolidate.prepare_export(source, out, wanted, config_dir=base)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    roles = {key.role for key in formats.read(source).tensors}
    compare(source, out, "param16" if "param16" in roles else "param", "param", tree)


def test_a_run_changes_framework_with_its_optimizer(tmp_path: Path) -> None:
    source, out = RUNS / "moe-ep2-tp2" / "checkpoint", tmp_path / "out"
    base = config_dir(EXPERTS, tmp_path / "base")
    conversion = convert.prepare_convert(source, out, "dcp", {}, config_dir=base, mapping=TO_HUB)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    for role in ("param", "exp_avg", "exp_avg_sq"):
        compare(source, out, role, role, EXPERTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers = 3, and the run was .* num_layers = 2"),
        ({"rope_theta": 5e5}, "rope_theta = 500000, and the run was .* rotary_base = 10000"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06, and the run was .* = 1e-05"),
        ({"vocab_size": 12}, "has 32 rows, but config.json has a vocabulary of 12"),
    ],
)
def test_a_config_of_another_model_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    base = config_dir({**DENSE, **change}, tmp_path / "base")
    wanted = consolidate.Options(dtype="bf16", mapping=TO_HUB)
    with pytest.raises(BadRequest, match=said):
        consolidate.prepare_export(
            RUNS / "dense-tp2-pp2" / "checkpoint", tmp_path / "out", wanted, config_dir=base
        )
