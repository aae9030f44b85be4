"""Makes a small model with the same layers as a given model, which runs quickly on a CPU.

Whether a token sees another token depends on the layers of a model and on the switches of its
config, not on widths. So the small model has all layers of the given model, with small widths.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zerotoolsd.trainer.model.meta_model import MetaModel, make_meta_model

WIDTH, HEADS, HEAD = 32, 4, 8
VOCABULARY = 64
LARGEST = 100_000_000
"""Largest number of parameters of a small model that is tested."""
_NOISE = 0.1
_SMALL = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "lru_width"), WIDTH
    ),
    **dict.fromkeys(("embedding_size", "attention_hidden_size", "dim", "emb_dim"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), HEAD),
    **dict.fromkeys(("d_kv", "d_head", "global_head_dim", "index_head_dim"), HEAD),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dff"), 2 * WIDTH),
    **dict.fromkeys(("decoder_ffn_dim", "intermediate_size_mlp", "dense_intermediate_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "adapter_rank", "lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "index_n_heads", "index_topk", "linear_num_heads"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_top_k", "linear_num_key_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("n_mamba_heads", "rotary_dim", "conv_kernel", "mamba_d_conv"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "mamba_dt_rank"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim", "chunk_size"), 16),
    **dict.fromkeys(("qk_head_dim", "swa_head_dim"), 16),
    **dict.fromkeys(("mamba_chunk_size", "block_size", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("mamba_d_ssm", "max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("max_seq_len", "sliding_window", "attention_window_size"), 64),
    **dict.fromkeys(("window_size", "attention_chunk_size", "context_length"), 64),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
}
"""Small values for the keys of a config that are sizes or counts.

A smaller value in the config stays.
"""
_ON_GPUS_ALONE = ("use_mamba_kernels",)
"""Switches for kernels that do not run on CPUs. Older releases of transformers have no fallback."""
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_LEFT_OUT = ("quantization_config", "auto_map", "torch_dtype", "dtype", "transformers_version")
_OWN = {
    # Their heads are those of the state space, with twice the width of the model.
    "falcon_h1": {"mamba_d_head": 16},
    "mamba2": {"head_dim": 16},
    "qwen3_5_text": {"head_dim": 16},
    "qwen3_5_moe_text": {"head_dim": 16},
    # Attention is as wide as the embeddings and the layer before together.
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16},
}


def small_model(config: Any) -> Any | None:
    """Return a small model with the layers of `config`, on the CPU, with random weights.

    Returns None if no small model can be made.
    """
    meta_model = make_meta_model(config)
    for make in (narrow_config, copy.deepcopy):
        try:
            drawn = make_meta_model(make(config))
        except Exception:  # whatever a config class raises over widths that do not go together
            continue
        if same_layers(drawn, meta_model) and sum(drawn.parameter_count()) <= LARGEST:
            return _with_weights(drawn)
    return None


def _with_weights(drawn: MetaModel) -> Any:
    model = type(drawn.model)(drawn.config)
    model.float().tie_weights()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=_NOISE)
    return model.train()


def narrow_config(config: Any) -> Any:
    """Return a copy of `config` for a model with a width of 32.

    Raises the errors of the config class if it does not accept such a width.
    """
    return type(config).from_dict(_narrow(config.to_dict()))


def same_layers(first: MetaModel, second: MetaModel) -> bool:
    """Return whether two models consist of the same module classes."""
    return _kinds(first) == _kinds(second)


def _kinds(meta_model: MetaModel) -> set[type]:
    return {type(module) for module in meta_model.model.modules()}


def _narrow(tree: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in _values(tree) if name not in _LEFT_OUT}
    return found | _OWN.get(str(tree.get("model_type")), {})


def _values(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    heads = next((tree[name] for name in ("num_attention_heads", "n_heads") if name in tree), None)
    for name, value in tree.items():
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, Mapping):
            yield name, _plain_rope(value)
        elif isinstance(value, Mapping):
            yield name, _narrow(value)
        elif name in _ON_GPUS_ALONE:
            yield name, False
        elif name in _TOKEN_IDS:
            yield name, None if value is None else 1
        elif name in _KEY_HEADS and _is_count(value):
            yield name, min(value, HEADS if value == heads else 2)
        elif name in _SMALL and _is_count(value):
            yield name, min(value, _SMALL[name])
        else:
            yield name, copy.deepcopy(value)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _plain_rope(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config `tree` with plain rotary embeddings, which do not change what a token can
    see.

    Scaled rotary embeddings would need lists as long as a head.
    """
    if not any(isinstance(value, float | str) for value in tree.values()):  # by kind of layer
        return {name: value and _plain_rope(value) for name, value in tree.items()}
    kept = {name: value for name, value in tree.items() if not isinstance(value, list)}
    return {**kept, "rope_type": "default"}
