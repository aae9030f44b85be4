"""What a run was started with, beside what config.json says of its model.

Programs such as Megatron-LM keep the arguments of the training script in the checkpoint. Some of
them no shape tells of, and a model with others computes something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.maps.map_sizes import MULTIPLE

_SAME = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "rotary_base": ("rope_theta", "rope_parameters.rope_theta"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps"),
    "moe_router_topk": ("num_experts_per_tok",),
}
"""Arguments of Megatron-LM, and the keys of config.json that say the same."""


def run_arguments(training: TrainingState) -> Mapping[str, Any]:
    """The arguments of the run, as far as its checkpoint has them."""
    found = training.client.get("args")
    return found if isinstance(found, Mapping) else {}


def with_run_arguments(
    training: TrainingState, config: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a map for this run: what the run itself says, and before it those `given`.

    Raises:
        BadRequest: config.json is of a model that the run did not train.
    """
    run = run_arguments(training)
    refuse_another(run, config)
    return {**padding_of(run), **given}


def padding_of(arguments: Mapping[str, Any]) -> dict[str, int]:
    """To which multiple the run has padded its vocabulary."""
    multiple = arguments.get("make_vocab_size_divisible_by")
    ranks = arguments.get("tensor_model_parallel_size", 1)
    is_said = type(multiple) is int and type(ranks) is int and multiple > 0 and ranks > 0
    return {MULTIPLE: multiple * ranks} if is_said else {}


def refuse_another(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """
    Raises:
        BadRequest: config.json is of a model that the run did not train.
    """
    said = list(_contradictions(arguments, config))
    if said:
        raise BadRequest(
            f"config.json is not of this run: {'; '.join(said)}; correct config.json, or give that "
            "of the run's model by --config-dir"
        )


def _contradictions(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    for name, keys in _SAME.items():
        trained = arguments.get(name)
        for key in keys:
            given: Any = config
            for word in key.split("."):
                given = given.get(word) if isinstance(given, Mapping) else None
            if _is_number(trained) and _is_number(given) and trained != given:
                yield f"it has {key} = {given:g}, and the run was trained with {name} = {trained:g}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
