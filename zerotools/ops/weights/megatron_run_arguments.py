"""Read the arguments of a run's training script, which describe its model in addition to
config.json.

Programs such as Megatron-LM store these arguments in the checkpoint. Some of them affect no shape,
but the values that the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from zerotools.core.errors import BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.io.huggingface.config_json import flat_config, ties_embeddings
from zerotools.maps.map_variables import (
    MULTIPLE,
    has_centred_norms,
    normalises_experts,
    rotates_pairs,
)

_SAME = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "rotary_base": ("rope_theta", "rope_parameters.rope_theta"),
    "rotary_percent": ("partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps"),
    "layernorm_epsilon": ("rms_norm_eps", "layer_norm_eps"),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor",),
}
"""Arguments of Megatron-LM and Megatron-Bridge, each with the key of config.json of the same
meaning.
"""

_TIES = "it has no tie_word_embeddings, so the head of {} would be its embedding"


def run_arguments(training: TrainingState) -> Mapping[str, Any]:
    """Return the arguments of the run; empty if its checkpoint does not have them."""
    found = training.client.get("args")
    return found if isinstance(found, Mapping) else {}


def with_run_arguments(
    training: TrainingState, config: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments for a layout map: those that follow from the run, overridden by `given`.

    Raises:
        BadRequest: config.json describes another model than the run trained.
    """
    run = run_arguments(training)
    refuse_another(run, config)
    return {**padding_of(run), **given}


def padding_of(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the map argument that the run's padded vocabulary size is a multiple of; empty if the
    run does not record it."""
    multiple = arguments.get("make_vocab_size_divisible_by")
    ranks = arguments.get("tensor_model_parallel_size", 1)
    is_said = type(multiple) is int and type(ranks) is int and multiple > 0 and ranks > 0
    return {MULTIPLE: multiple * ranks} if is_said else {}


def refuse_another(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise BadRequest if config.json describes another model than the run trained."""
    said = list(_contradictions(arguments, config))
    if said:
        raise BadRequest(
            f"config.json is not from this run: {'; '.join(said)}; correct config.json, or give "
            "the config.json of the run's model with --config-dir"
        )


def _contradictions(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    untied = "untie_embeddings_and_output_weights"
    if arguments.get(untied) is True and ties_embeddings(config):
        said = config.get("tie_word_embeddings") is True
        what = "it has tie_word_embeddings = true" if said else _TIES.format(config["model_type"])
        yield f"{what}, and {_trained_with(untied, True)}"
    config = flat_config(config)
    for name, keys in _SAME.items():
        trained = arguments.get(name)
        for key in keys:
            given: Any = config
            for word in key.split("."):
                given = given.get(word) if isinstance(given, Mapping) else None
            if _is_number(trained) and _is_number(given) and trained != given:
                yield f"it has {key} = {given:.12g}, and {_trained_with(name, trained)}"
    yield from _other_meanings(arguments, config)


def _other_meanings(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("model_type")
    for name in ("apply_layernorm_1p", "layernorm_zero_centered_gamma"):
        wanted = has_centred_norms(config)
        if arguments.get(name) is (not wanted):
            how = "1 + their weight" if wanted else "their weight"
            yield f"norms of {kind} multiply by {how}, and {_trained_with(name, not wanted)}"
    name = "rotary_interleaved"
    if arguments.get("multi_latent_attention") is not True:
        wanted = rotates_pairs(config)
        if arguments.get(name) is (not wanted):
            how = "neighbouring elements" if wanted else "the two halves of a head"
            yield f"{kind} rotates {how} together, and {_trained_with(name, not wanted)}"
    name, normalises = "moe_router_pre_softmax", normalises_experts(config)
    is_softmax = arguments.get("moe_router_score_function", "softmax") == "softmax"
    said: Any = config.get("norm_topk_prob")
    if is_softmax and arguments.get(name) is normalises:
        if said is normalises:
            yield f"it has norm_topk_prob = {str(said).lower()}, and {_trained_with(name, said)}"
        elif kind == "deepseek_v2":
            yield f"its experts' weights do not sum to 1, and {_trained_with(name, normalises)}"


def _trained_with(name: str, value: object) -> str:
    said = f"{value:.12g}" if _is_number(value) else str(value).lower()
    return f"the run was trained with {name} = {said}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
