"""A tiny config of each causal architecture: every kind of layer once or twice, 32 wide.

What is not said here is transformers' own default. No layer drops anything out, so that two
trainers of the same weights can be compared.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 256
BASE = " base"

_NO_DROPOUT = (
    *("attention_dropout", "attention_probs_dropout_prob", "attn_dropout", "attn_pdrop"),
    *("activation_dropout", "dropout", "embd_pdrop", "embed_dropout", "hidden_dropout"),
    *("embedding_dropout", "hidden_dropout_prob", "layerdrop", "resid_dropout", "resid_pdrop"),
    "residual_dropout",
)
_WIDTHS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # the names of older models
    "n_embd": 32,
    "n_inner": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 64,
    "rotary_dim": 4,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "sliding_window": 16,
    "state_size": 8,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "apertus": _ROPE,
    "arcee": {},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "biogpt": {},
    "bitnet": {},
    "bloom": {},
    "bloom base": {},
    "codegen": {},
    "cohere": {},
    "cohere2": {},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "diffllama": {},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "exaone4": {},
    "falcon": {},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 64},
    "falcon_mamba": {},
    "flex_olmo": {},
    "gemma": {},
    "gemma2": {},
    "gemma3": {
        "vision_config": _VISION,
        "mm_tokens_per_image": 1,
        "image_token_index": 250,
        "boi_token_index": 251,
        "eoi_token_index": 252,
    },
    "gemma3_text": {},
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "gpt2": {},
    "gpt2 base": {},
    "gpt_bigcode": {},
    "gpt_neo": {
        "num_layers": 2,
        "num_heads": 4,
        "window_size": 16,
        "attention_types": [[["global", "local"], 1]],
    },
    "gpt_neox": {},
    "gpt_oss": _ROPE,
    "gptj": {},
    "granite": {},
    "granitemoe": {},
    "granitemoehybrid": {
        **_MAMBA2,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 32,
    },
    "granitemoeshared": {"shared_intermediate_size": 32},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"moe_topk": 2},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "jetmoe": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "llama": {},
    "llama4_text": {"intermediate_size_mlp": 64, "attention_chunk_size": 16},
    "mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "block_size": 16},
    "mistral": {},
    "mixtral": {},
    "mpt": {},
    "nemotron": {},
    "nemotron_h": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
        "layers_block_type": ["mamba", "attention"],
    },
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {"router_jitter_noise": 0.0},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_5_text": {**_LINEAR, "head_dim": 16},
    "qwen3_moe": {},
    "qwen3_next": _LINEAR,
    "recurrent_gemma": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "lru_width": 32,
        "attention_window_size": 16,
    },
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "xglm": {"attention_heads": 4, "num_layers": 2},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"],
        "num_key_value_heads": 4,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_d_state": 8,
        "mamba_ngroups": 1,
        "chunk_size": 16,
        "num_mem_blocks": 1,
        "adapter_rank": 8,
    },
}
"""What each says besides `_WIDTHS`, as far as its config class knows these. One that is called
`base` is saved without its head, which is tied: its names lack a prefix, as those of GPT-2 do."""


def tiny_config(name: str) -> Any:
    """The Hugging Face config of `name`, a key of `ARCHITECTURES`."""
    from transformers import CONFIG_MAPPING

    kind, own = CONFIG_MAPPING[name.removesuffix(BASE)], ARCHITECTURES[name]
    default = kind()
    if "text_config" in vars(default):
        text = _known(default.text_config)
        return kind.from_dict({**own, "text_config": text})
    return kind.from_dict({**_known(default), **own})


def _known(default: Any) -> dict[str, Any]:
    names = vars(default).keys() | set(default.attribute_map)
    told = {**_WIDTHS, **dict.fromkeys(_NO_DROPOUT, 0.0)}
    return {name: value for name, value in told.items() if name in names}
