"""Derive the arguments of Megatron's training script for a model from its config.json and its
tensors.

Shapes come from the tensors, other values from config.json. With `--use-checkpoint-args`, Megatron
reads the arguments that `load_args_from_checkpoint` in `megatron/training/checkpointing.py` names.
Other values, such as the scaling of RoPE, must be passed to the script as options; `unset_options`
lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType
from zerotools.formats.megatron.training_state import EMBEDDING, OUTPUT
from zerotools.io.huggingface.config_json import flat_config, full_config, ties_embeddings
from zerotools.maps.map_variables import (
    has_centred_norms,
    has_several_ropes,
    normalises_experts,
    rope_of,
    rotary_share,
    rotates_pairs,
    usual_share,
)

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)", re.S)
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d+)\..+", re.S)
_FC1, _FC2 = "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"
_EXPERT_FC2 = "mlp.experts.local_experts.0.linear_fc2.weight"
_USUAL_MULTIPLE = 128
_PLAIN_ROPE = (None, "default")


def model_arguments(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of Megatron's script for the model that config.json describes.

    `tensors` are its weights, keyed by the names that they have in a model on one rank.
    """
    is_tied = ties_embeddings(config)
    config = full_config(config)
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.fullmatch(name):
            layers.setdefault(int(match[1]), {})[match[2]] = tensor
    within = {name: tensor for each in layers.values() for name, tensor in each.items()}
    found = {
        **_sizes(config, tensors, within, len(layers)),
        **_attention(config, within),
        **_position(config),
        **_layer_kinds(config, within),
        "untie_embeddings_and_output_weights": OUTPUT in tensors and not is_tied,
        **(_experts(config, within, layers) if "mlp.router.weight" in within else {}),
        **_precision(tensors),
        "num_experts": _rows(within.get("mlp.router.weight")),
    }
    return {name: value for name, value in found.items() if value is not None or name in _NONE}


_NONE = ("num_experts",)
PARALLEL = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "context_parallel_size": 1,
    "data_parallel_size": 1,
    "world_size": 1,
}
"""The arguments that the checkpoint does not set, because it fits any degrees of parallelism."""


def _rows(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.shape[0]


def _sizes(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    within: Mapping[str, Tensor],
    count: int,
) -> dict[str, Any]:
    embedding = tensors.get(EMBEDDING)
    fc2 = within.get(_FC2) or within.get(_EXPERT_FC2)
    ffn = config.get("intermediate_size") if _FC2 not in within else None
    return {
        "num_layers": count,
        "mtp_num_layers": len({m[1] for name in tensors if (m := _MTP_LAYER.fullmatch(name))})
        or None,
        "hidden_size": embedding.shape[1] if embedding else config.get("hidden_size"),
        "ffn_hidden_size": ffn or (fc2.shape[1] if fc2 else None),
        "padded_vocab_size": _rows(embedding),
        "vocab_size": config.get("vocab_size"),
        "make_vocab_size_divisible_by": _multiple(_rows(embedding), config.get("vocab_size")),
        "max_position_embeddings": config.get("max_position_embeddings"),
    }


def _multiple(rows: int | None, vocabulary: Any) -> int | None:
    """Return a number M, so that Megatron gets `rows` if it pads `vocabulary` to a multiple of M.
    Readers need M to find the padding rows.

    M is Megatron's usual number if it fits, else the largest power of two that fits, or None.
    """
    if rows is None or type(vocabulary) is not int or vocabulary < 1:
        return None
    usual = [_USUAL_MULTIPLE, *(2**power for power in range(20, -1, -1))]
    return next((each for each in usual if -(-vocabulary // each) * each == rows), None)


def _attention(config: Mapping[str, Any], within: Mapping[str, Tensor]) -> dict[str, Any]:
    heads = config.get("num_attention_heads")
    if "self_attention.linear_kv_up_proj.weight" in within:
        return {
            "num_attention_heads": heads,
            "multi_latent_attention": True,
            "q_lora_rank": config.get("q_lora_rank"),
            "kv_lora_rank": config.get("kv_lora_rank"),
            "qk_head_dim": config.get("qk_nope_head_dim"),
            "qk_pos_emb_head_dim": config.get("qk_rope_head_dim"),
            "v_head_dim": config.get("v_head_dim"),
            "qk_layernorm": True,
        }
    groups = config.get("num_key_value_heads") or heads
    projection = within.get("self_attention.linear_proj.weight")
    channels = projection.shape[1] // heads if projection and heads else config.get("head_dim")
    return {
        "num_attention_heads": heads,
        "group_query_attention": groups != heads,
        "num_query_groups": groups,
        "kv_channels": channels,
        "multi_latent_attention": False,
        "qk_layernorm": "self_attention.q_layernorm.weight" in within,
    }


def _position(config: Mapping[str, Any]) -> dict[str, Any]:
    base = config.get("rope_theta", rope_of(config).get("rope_theta", 10000))
    share = rotary_share(config)
    return {
        "position_embedding_type": "rope",
        "rotary_base": int(base) if isinstance(base, float) and base.is_integer() else base,
        "rotary_percent": usual_share(config) if share is None else share,
        "rotary_interleaved": rotates_pairs(config),
    }


def _layer_kinds(config: Mapping[str, Any], within: Mapping[str, Tensor]) -> dict[str, Any]:
    biases = ("self_attention.linear_proj.bias", "mlp.linear_fc2.bias")
    return {
        "normalization": "RMSNorm",
        "norm_epsilon": config.get("rms_norm_eps"),
        "apply_layernorm_1p": has_centred_norms(config),
        "swiglu": _activation(config) in (None, "silu"),
        "squared_relu": False,
        "add_bias_linear": any(bias in within for bias in biases),
        "add_qkv_bias": "self_attention.linear_qkv.bias" in within,
        "attention_dropout": config.get("attention_dropout") or 0.0,
        "hidden_dropout": 0.0,
    }


def _activation(config: Mapping[str, Any]) -> Any:
    """Return the name of the MLP's activation, or None if config.json does not name one.

    The first releases of Gemma 1 name `gelu`, but transformers and Megatron-Bridge then compute its
    approximation by tanh.
    """
    found = config.get("hidden_act") or config.get("hidden_activation")
    is_old_name = found == "gelu" and config.get("model_type") == "gemma"
    return "gelu_pytorch_tanh" if is_old_name else found


def _experts(
    config: Mapping[str, Any],
    within: Mapping[str, Tensor],
    layers: Mapping[int, Mapping[str, Tensor]],
) -> dict[str, Any]:
    kinds = [int("mlp.router.weight" in layers[number]) for number in sorted(layers)]
    fc2 = within.get(_EXPERT_FC2)
    shared = within.get("mlp.shared_experts.linear_fc2.weight")
    has_bias = "mlp.router.expert_bias" in within
    return {
        "moe_layer_freq": 1 if all(kinds) else kinds,
        "moe_ffn_hidden_size": fc2.shape[1] if fc2 else None,
        "moe_router_topk": config.get("num_experts_per_tok"),
        "moe_router_pre_softmax": not normalises_experts(config),
        "moe_router_score_function": "sigmoid" if has_bias else "softmax",
        "moe_router_enable_expert_bias": has_bias,
        "moe_router_topk_scaling_factor": config.get("routed_scaling_factor"),
        "moe_shared_expert_intermediate_size": shared.shape[1] if shared else None,
    }


def _precision(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    embedding = tensors.get(EMBEDDING)
    dtype: DType | None = embedding.dtype if embedding else None
    return {
        "params_dtype": dtype,
        "bf16": dtype == BFLOAT16,
        "fp16": dtype == FLOAT16,
    }


def unset_options(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings in config.json that the user must pass to Megatron's script as options,
    because the checkpoint cannot set them.
    """
    config = flat_config(config)
    rope = rope_of(config)
    if rope.get("rope_type", rope.get("type")) not in _PLAIN_ROPE:
        yield "rope_scaling"
    if has_several_ropes(config):
        yield "the rope of layers with a sliding window"
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        yield "sliding_window"
    if (config.get("n_group") or 1) != 1:
        yield "n_group"
    if (activation := _activation(config)) not in (None, "silu"):
        yield f"hidden_activation ({activation})"
    if config.get("swiglu_limit"):
        yield "swiglu_limit"
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"):
        if config.get(key):
            yield key
