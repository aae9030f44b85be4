"""What a config.json leaves out is what transformers' classes have."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.io.huggingface.config_json import (
    KEPT_TABLE,
    TABLE,
    TIED_TYPES,
    class_keys,
    flat_config,
    full_config,
    kept_in_fp32,
    ties_embeddings,
)


def test_the_language_model_of_a_larger_one_is_looked_at() -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    assert flat_config(config)["model_type"] == "gemma3_text"
    assert flat_config({"text_config": None, "hidden_size": 4})["hidden_size"] == 4
    assert full_config(config)["head_dim"] == 256


def test_what_is_left_out_is_the_class_s_and_what_is_not_known_stays() -> None:
    found = full_config({"model_type": "mixtral", "hidden_size": 8, "mine": 1, "head_dim": None})
    assert found["num_local_experts"] == found["num_experts"] == 8
    assert (found["hidden_size"], found["mine"], found["head_dim"]) == (8, 1, None)
    assert "mine" not in class_keys("mixtral")
    other = {"model_type": "mine", "hidden_size": 8}
    assert full_config(other) == other
    assert class_keys("mine") == frozenset()
    assert full_config({"model_type": ["llama"]}) == {"model_type": ["llama"]}


def test_a_value_has_every_name_that_its_class_knows() -> None:
    found = full_config({"model_type": "gpt2", "n_embd": 8})
    assert found["hidden_size"] == found["n_embd"] == 8
    assert found["max_position_embeddings"] == found["n_positions"] == 1024
    assert full_config({"model_type": "gpt2", "n_embd": 8, "hidden_size": 16})["n_embd"] == 16
    both = {"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 5}
    assert full_config(both)["num_experts"] == 5


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "table"), [("class_defaults", TABLE), ("kept_in_fp32", KEPT_TABLE)]
)
def test_the_tables_are_those_of_the_installed_transformers(name: str, table: Path) -> None:
    pytest.importorskip("transformers")
    script = Path(__file__).parents[3] / "scripts" / f"{name}.py"
    spec = spec_from_file_location("script", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == table.read_text("utf-8"), f"run scripts/{name}.py"


BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize(
    ("config", "name", "kept_in"),
    [
        ({}, BIAS, (BFLOAT16, FLOAT16)),
        ({"model_type": "kimi_k2"}, BIAS, (BFLOAT16, FLOAT16)),
        ({}, "decoder.layers.0.mlp.router.expert_bias", (BFLOAT16, FLOAT16)),
        ({}, "model.layers.1.mlp.gate.weight", ()),
        ({"model_type": "ernie4_5_moe"}, "model.layers.1.mlp.gate.weight", (BFLOAT16, FLOAT16)),
        ({"model_type": "ernie4_5_moe"}, "model.layers.1.mlp.gate.weights", ()),
        ({"model_type": "ernie4_5_moe"}, "model.layers.1.mlp.agate.weight", ()),
        (
            {"model_type": "mine", "text_config": {"model_type": "ernie4_5_moe"}},
            "model.layers.1.mlp.gate.weight",
            (BFLOAT16, FLOAT16),
        ),
        ({"model_type": "deepseek_v4"}, "layers.3.ffn.gate.bias", (BFLOAT16, FLOAT16)),  # the Hub
        ({"model_type": "llama"}, "layers.3.ffn.gate.bias", ()),
        ({"model_type": "t5"}, "encoder.block.0.layer.1.DenseReluDense.wo.weight", (FLOAT16,)),
        ({"model_type": "t5"}, "decoder.block.0.layer.0.SelfAttention.k.weight", ()),
        ({"model_type": ["t5"]}, "encoder.block.0.layer.1.DenseReluDense.wo.weight", ()),
    ],
)
def test_names_that_stay_in_fp32(
    config: dict[str, Any], name: str, kept_in: tuple[DType, ...]
) -> None:
    found = [each for each in (BFLOAT16, FLOAT16) if kept_in_fp32(config, each).search(name)]
    assert found == list(kept_in)


TIED_SINCE_5 = {"mt5", "qwen3_vl_moe_text", "vilt"}
"""transformers 4.57 has False for them."""


@pytest.mark.parametrize(
    ("config", "is_tied"),
    [
        ({"model_type": "llama", "tie_word_embeddings": True}, True),
        ({"model_type": "llama"}, False),
        ({"model_type": "llama", "tie_word_embeddings": "true"}, False),
        ({"model_type": "gemma2"}, True),
        ({"model_type": "gemma2", "tie_word_embeddings": None}, True),
        ({"model_type": "gemma2", "tie_word_embeddings": False}, False),
        ({"model_type": ["gemma2"]}, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, True),
        ({"model_type": "gemma3", "text_config": {"tie_word_embeddings": False}}, False),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}, False),
        ({}, False),
    ],
)
def test_both_names_are_one_where_whoever_loads_it_says_so(
    config: dict[str, Any], is_tied: bool
) -> None:
    assert ties_embeddings(config) is is_tied


@pytest.mark.full  # it imports the config of every model; only another transformers changes that
@pytest.mark.torch
def test_the_types_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    there = set(CONFIG_MAPPING.keys())
    tied = {
        name for name in there if getattr(CONFIG_MAPPING[name], "tie_word_embeddings", 0) is True
    }
    assert TIED_TYPES & there <= tied
    assert tied - TIED_SINCE_5 <= TIED_TYPES
    assert not TIED_TYPES & TIED_SINCE_5
