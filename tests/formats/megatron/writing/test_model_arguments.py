"""Arguments of the training script out of config.json and shapes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.formats.megatron.writing.weights import DENSE, EXPERTS, model
from zerotools.core.dtypes import BFLOAT16
from zerotools.formats.megatron.writing.model_arguments import model_arguments, unset_options

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 29,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def test_a_dense_model() -> None:
    found = model_arguments(CONFIG, model(DENSE, DENSE))
    assert (found["num_layers"], found["hidden_size"], found["ffn_hidden_size"]) == (2, 16, 24)
    assert (found["num_query_groups"], found["kv_channels"]) == (2, 4)
    assert found["group_query_attention"] is True
    assert (found["padded_vocab_size"], found["vocab_size"]) == (32, 29)
    assert found["make_vocab_size_divisible_by"] == 32
    assert (found["rotary_base"], found["norm_epsilon"]) == (500000, 1e-6)
    assert found["untie_embeddings_and_output_weights"] is True
    assert found["num_experts"] is None
    assert (found["params_dtype"], found["bf16"], found["fp16"]) == (BFLOAT16, True, False)


def test_what_a_config_leaves_out_is_as_its_class_has_it() -> None:
    tree = {**CONFIG, "model_type": "mistral", "num_attention_heads": 16, "hidden_act": None}
    del tree["num_key_value_heads"], tree["hidden_act"], tree["rms_norm_eps"]
    found = model_arguments(tree, model(DENSE))
    assert (found["num_query_groups"], found["group_query_attention"]) == (8, True)
    assert (found["norm_epsilon"], found["swiglu"]) == (1e-6, True)


def test_a_head_that_transformers_ties_is_none() -> None:
    name = "untie_embeddings_and_output_weights"
    tied = {**CONFIG, "model_type": "gemma2"}
    assert model_arguments(tied, model(DENSE))[name] is False
    assert model_arguments({**tied, "tie_word_embeddings": False}, model(DENSE))[name] is True


def test_layers_that_predict_further_tokens_are_counted() -> None:
    weights = model(DENSE)
    assert "mtp_num_layers" not in model_arguments(CONFIG, weights)
    norm = weights["output_layer.weight"]
    more = {f"mtp.layers.{number}.{name}": norm for number in (0, 1) for name in ("enorm", "hnorm")}
    assert model_arguments(CONFIG, weights | more)["mtp_num_layers"] == 2


def test_a_model_of_experts_behind_a_dense_layer() -> None:
    tree = {**CONFIG, "num_experts_per_tok": 2, "norm_topk_prob": False}
    found = model_arguments(tree, model(DENSE, EXPERTS, EXPERTS))
    assert (found["num_experts"], found["moe_ffn_hidden_size"]) == (2, 12)
    assert found["moe_layer_freq"] == [0, 1, 1]
    assert (found["moe_router_topk"], found["moe_router_pre_softmax"]) == (2, True)
    assert found["ffn_hidden_size"] == 24


@pytest.mark.parametrize(
    ("rows", "vocabulary", "multiple"), [(128, 100, 128), (32, 29, 32), (29, 29, 1), (48, 9, None)]
)
def test_the_multiple_explains_the_rows(rows: int, vocabulary: int, multiple: int | None) -> None:
    weights = model(DENSE)
    name = "embedding.word_embeddings.weight"
    weights[name] = weights[name].__class__(BFLOAT16, (rows, 16), ())
    found = model_arguments({**CONFIG, "vocab_size": vocabulary}, weights)
    assert found.get("make_vocab_size_divisible_by") == multiple


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, []),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_scaling"]),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, []),
        ({"sliding_window": 4096}, ["sliding_window"]),
        ({"sliding_window": 4096, "use_sliding_window": False}, []),
    ],
)
def test_what_the_script_must_be_told_is_named(more: dict[str, Any], said: list[str]) -> None:
    assert [*unset_options({**CONFIG, **more})] == said


@pytest.mark.parametrize(
    ("config", "share", "pairs"),
    [
        ({"model_type": "glm4", "partial_rotary_factor": 0.5}, 0.5, True),
        ({"model_type": "glm4", "rope_parameters": {"partial_rotary_factor": 0.25}}, 0.25, True),
        ({"model_type": "glm4_moe"}, 0.5, False),
        ({"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.75}}, 0.75, False),
        ({"model_type": "llama"}, 1.0, False),
    ],
)
def test_how_much_of_a_head_is_rotated_and_how(
    config: dict[str, Any], share: float, pairs: bool
) -> None:
    found = model_arguments({**CONFIG, **config}, model(DENSE))
    assert (found["rotary_percent"], found["rotary_interleaved"]) == (share, pairs)


def test_layers_with_a_rope_of_their_own_are_named() -> None:
    theirs = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    gemma = {key: value for key, value in CONFIG.items() if key not in ("rope_theta", "hidden_act")}
    gemma |= {"rope_parameters": theirs, "hidden_activation": "gelu_pytorch_tanh"}
    assert model_arguments(gemma, model(DENSE))["rotary_base"] == 1_000_000
    assert list(unset_options(gemma)) == [
        "the rope of layers with a sliding window",
        "hidden_activation (gelu_pytorch_tanh)",
    ]


def test_the_activation_of_gemma_1_is_the_approximation_that_is_computed() -> None:
    """As transformers' `GemmaConfig` and Megatron-Bridge's `GemmaBridge` read "gelu"."""
    gemma = {**CONFIG, "model_type": "gemma", "hidden_act": "gelu"}
    assert "hidden_activation (gelu_pytorch_tanh)" in unset_options(gemma)
    assert not model_arguments(gemma, model(DENSE))["swiglu"]
    assert "hidden_activation (gelu)" in unset_options({**gemma, "model_type": "x"})
