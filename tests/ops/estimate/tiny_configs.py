"""A tiny config of each architecture whose activations are known."""

from __future__ import annotations

from typing import Any

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
OPT = {**SIZES, "ffn_dim": 80, "word_embed_proj_dim": 32}
EXPERTS = {"num_experts_per_tok": 2}


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    sizes = {
        "gpt2": GPT2,
        "opt": {
            k: v for k, v in OPT.items() if k not in ("intermediate_size", "num_key_value_heads")
        },
        "mixtral": {**SIZES, **EXPERTS, "num_local_experts": 4},
        "qwen3_moe": {**SIZES, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 24},
        "gpt_neox": {k: v for k, v in SIZES.items() if k != "num_key_value_heads"},
    }.get(model_type, SIZES)
    return {**sizes, "model_type": model_type, **changes}
