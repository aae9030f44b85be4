from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.ops.weights.megatron_run_arguments import padding_of, refuse_another, run_arguments


def test_arguments_are_those_of_the_run_or_none() -> None:
    assert run_arguments(TrainingState(client={"args": {"num_layers": 2}})) == {"num_layers": 2}
    assert run_arguments(TrainingState(client={"args": "--num-layers 2"})) == {}
    assert run_arguments(TrainingState()) == {}


@pytest.mark.parametrize(
    ("arguments", "multiple"),
    [
        ({"make_vocab_size_divisible_by": 8, "tensor_model_parallel_size": 2}, 16),
        ({"make_vocab_size_divisible_by": 128}, 128),
        ({"make_vocab_size_divisible_by": "128"}, None),
        ({"make_vocab_size_divisible_by": 0}, None),
        ({"tensor_model_parallel_size": 2}, None),
    ],
)
def test_padding_is_to_what_the_run_was_told(
    arguments: dict[str, Any], multiple: int | None
) -> None:
    assert padding_of(arguments).get("vocab_multiple") == multiple


def test_what_the_run_was_not_told_is_not_compared() -> None:
    config = {"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 1e4}}
    refuse_another({}, config)
    refuse_another({"num_layers": 2, "rotary_base": 10000, "norm_epsilon": None}, config)
    with pytest.raises(BadRequest, match=r"rope_parameters.rope_theta = 10000, and the run .* 500"):
        refuse_another({"rotary_base": 500}, config)


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        (
            {"untie_embeddings_and_output_weights": True},
            {"tie_word_embeddings": True},
            "tie_word_embeddings = true, and .*untie_embeddings_and_output_weights = true",
        ),
        (
            {"untie_embeddings_and_output_weights": True},
            {"model_type": "gemma2"},
            ("no tie_word_embeddings, so the head of gemma2 would be its embedding, and .*true"),
        ),
        (
            {"rotary_interleaved": True},
            {"model_type": "llama"},
            "llama rotates the two halves of a head together, and .*rotary_interleaved = true",
        ),
        ({"rotary_interleaved": False}, {"model_type": "glm4"}, "glm4 rotates neighbouring"),
        ({"apply_layernorm_1p": True}, {"model_type": "llama"}, "multiply by their weight"),
        (
            {"layernorm_zero_centered_gamma": False},
            {"model_type": "gemma2"},
            r"norms of gemma2 multiply by 1 \+ their weight",
        ),
        ({"rotary_percent": 1.0}, {"partial_rotary_factor": 0.5}, "= 0.5, and .* = 1"),
        ({"moe_router_pre_softmax": True}, {"norm_topk_prob": True}, "norm_topk_prob = true"),
        ({"moe_router_pre_softmax": False}, {"model_type": "deepseek_v2"}, "do not sum to 1"),
        ({"num_layers": 2}, {"text_config": {"num_hidden_layers": 3}}, "= 3, and .* = 2"),
        ({"hidden_size": 5000001}, {"hidden_size": 5000002}, "= 5000002, and .* = 5000001"),
    ],
)
def test_what_the_model_would_compute_otherwise_is_refused(
    arguments: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        refuse_another(arguments, config)


def test_a_run_and_a_config_that_say_the_same_are_taken() -> None:
    run = {
        "untie_embeddings_and_output_weights": False,
        "apply_layernorm_1p": True,
        "rotary_interleaved": False,
        "moe_router_pre_softmax": True,
    }
    refuse_another(run, {"model_type": "gemma2", "tie_word_embeddings": True})
    refuse_another(run, {"model_type": "gemma2", "norm_topk_prob": False})
    refuse_another({"rotary_interleaved": True}, {"model_type": "glm4"})
    untied = {"untie_embeddings_and_output_weights": True}
    refuse_another(untied, {"model_type": "gemma2", "tie_word_embeddings": False})
    refuse_another(untied, {"model_type": "llama"})
    latent = {"multi_latent_attention": True, "rotary_interleaved": True}
    refuse_another(latent, {"model_type": "deepseek_v3"})
    sigmoid = {"moe_router_score_function": "sigmoid", "moe_router_pre_softmax": True}
    refuse_another(sigmoid, {"norm_topk_prob": True})
