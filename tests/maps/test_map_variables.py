"""What a config.json leaves out has the sizes that transformers gives it."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tests.maps.models import CONFIGS, config
from zerotools.io.huggingface.config_json import ties_embeddings
from zerotools.maps.map_variables import (
    has_several_ropes,
    normalises_experts,
    rope_of,
    rotary_share,
    usual_share,
)
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import map_of_model

FIXED = {"model_type", "num_hidden_layers", "pad_token_id", "mlp_only_layers"}


def _shapes(tree: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return dict(layout_of_model(map_of_model(tree), "hf", tree, {}).hub)


def _without(tree: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in keys}


def test_sizes_that_are_left_out_are_those_of_the_class() -> None:
    tree = _without(config("mixtral"), "num_local_experts", "num_key_value_heads")
    found = _shapes(tree)
    assert found["model.layers.0.self_attn.k_proj.weight"] == (8 * 8, 32)
    assert found["model.layers.0.block_sparse_moe.gate.weight"] == (8, 32)
    low = "model.layers.0.self_attn.q_a_proj.weight"
    tree = config("deepseek-v3")
    assert _shapes(_without(tree, "q_lora_rank"))[low] == (1536, 32)
    assert low not in _shapes({**tree, "q_lora_rank": None})


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_any_key_has_as_many_elements_as_that_of_transformers(name: str) -> None:
    tree = config(name)
    width = {"hidden_size": 1536}
    changes: dict[str, dict[str, int]] = {
        "num_attention_heads": width,
        "num_key_value_heads": {**width, "num_attention_heads": 96},
    }
    for key in tree.keys() - FIXED:
        _compare(_without({**tree, **changes.get(key, {})}, key))


def _compare(tree: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[tree["model_type"]].from_dict(tree))
    model.tie_weights()
    buffers = [tensor for key, tensor in model.named_buffers() if "e_score" in key]
    expected = sum(tensor.numel() for tensor in (*model.parameters(), *buffers))
    ours = _shapes(tree)
    if ties_embeddings(tree):
        ours.pop("lm_head.weight", None)
    assert sum(prod(shape) for shape in ours.values()) == expected


def test_the_rope_of_old_and_of_new_configs() -> None:
    assert rope_of({"rope_scaling": {"type": "yarn"}}) == {"type": "yarn"}
    assert rope_of({"rope_parameters": {"rope_theta": 5}, "rope_scaling": {}}) == {"rope_theta": 5}
    assert rope_of({"rope_parameters": "yarn"}) == {}
    nested = {"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_theta": 7}}}
    assert rope_of(nested) == {"rope_theta": 7}
    assert has_several_ropes(nested)
    assert has_several_ropes({"rope_theta": 1e6, "rope_local_base_freq": 1e4})
    assert not has_several_ropes({"rope_parameters": {"rope_theta": 5}})


def test_a_share_that_is_not_said_is_that_of_transformers() -> None:
    assert rotary_share({"model_type": "glm4"}) is None
    assert usual_share({"model_type": "glm4"}) == 0.5
    assert usual_share({"model_type": "llama"}) == 1.0
    assert rotary_share({"rope_parameters": {"partial_rotary_factor": 0.75}}) == 0.75


def test_which_experts_weigh_1_together() -> None:
    assert normalises_experts({"model_type": "mixtral"})
    assert not normalises_experts({"model_type": "qwen3_moe"})
    assert normalises_experts({"model_type": "qwen3_moe", "norm_topk_prob": True})
    assert not normalises_experts({"model_type": "deepseek_v2", "norm_topk_prob": True})
