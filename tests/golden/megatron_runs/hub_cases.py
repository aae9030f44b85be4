"""Cases that are models of the Hub, too: a run of Megatron, the config.json of the same model, and
the logits that Megatron computes of it.

Not here are families for which Megatron-Core has no modules of its own (Gemma, OLMo 2, GLM 4).
"""

from dataclasses import replace
from typing import Any

import torch

from .cases import MLA, Case

VOCABULARY = 29
_DENSE = {
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_hidden_size": 24,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 8,
}
_EXPERTS = {
    **_DENSE,
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 12,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
}
_SIGMOID = {
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_topk_scaling_factor": 1.5,
    "moe_shared_expert_intermediate_size": 24,
    "moe_layer_freq": [0, 1],
    "mtp_num_layers": 1,
}
_LATENT = {
    **MLA,
    **_EXPERTS,
    **_SIGMOID,
    "num_query_groups": 4,
    "qk_layernorm": True,
    "layernorm_epsilon": 1e-6,
}
_HUB: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_HUB_EXPERTS = {
    **_HUB,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_HUB_SIGMOID = {
    **_HUB_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 1,
}
_EP = {"tp": 2, "ep": 2, "dp": 2, "etp": 1}


def _case(name: str, about: str, model: dict[str, Any], **degrees: Any) -> Case:
    return Case(f"hub-{name}", about, model=model, **{"precision": "fp32", **degrees})


_PAIRS: list[tuple[Case, dict[str, Any]]] = [
    (
        _case("llama", "two stages of two ranks", dict(_DENSE), tp=2, pp=2),
        {**_HUB, "model_type": "llama"},
    ),
    (
        _case("qwen2", "biases of QKV", {**_DENSE, "add_qkv_bias": True}, tp=2, pp=2),
        {**_HUB, "model_type": "qwen2"},
    ),
    (
        _case("qwen3", "norms of q and k; tied", {**_DENSE, "qk_layernorm": True}, tp=2, pp=2),
        {**_HUB, "model_type": "qwen3", "tie_word_embeddings": True},
    ),
    (
        _case("phi3", "fused on the Hub", dict(_DENSE), tp=2, pp=2),
        {**_HUB, "model_type": "phi3"},
    ),
    (
        _case("mixtral", "experts over two ranks", dict(_EXPERTS), **_EP),
        {**_HUB_EXPERTS, "model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 12},
    ),
    (
        _case(
            "qwen2-moe",
            "a gate of the shared expert",
            {
                **_EXPERTS,
                "add_qkv_bias": True,
                "moe_router_pre_softmax": True,
                "moe_shared_expert_intermediate_size": 20,
                "moe_shared_expert_gate": True,
            },
            **_EP,
        ),
        {
            **_HUB_EXPERTS,
            "model_type": "qwen2_moe",
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": 20,
        },
    ),
    (
        _case("qwen3-moe", "norms of q and k", {**_EXPERTS, "qk_layernorm": True}, **_EP),
        {**_HUB_EXPERTS, "model_type": "qwen3_moe"},
    ),
    (
        _case(
            "fsdp-qwen3-moe",
            "Megatron-FSDP, whose experts are sharded, too",
            {**_EXPERTS, "qk_layernorm": True, "num_layers": 1},
            **_EP,
            precision="bf16",  # of which Megatron-FSDP keeps masters alone
            format="fsdp_dtensor",
            optimizer="fsdp_dtensor",
        ),
        {**_HUB_EXPERTS, "model_type": "qwen3_moe", "num_hidden_layers": 1},
    ),
    (
        _case(
            "qwen3-moe-mixed",
            "a dense layer first, two stages",
            {**_EXPERTS, "qk_layernorm": True, "moe_layer_freq": [0, 1]},
            tp=2,
            pp=2,
            etp=2,
        ),
        {**_HUB_EXPERTS, "model_type": "qwen3_moe", "mlp_only_layers": [0]},
    ),
    (
        _case("deepseek-v3", "latent attention, MTP", {**_LATENT, "num_layers": 2}, **_EP),
        {
            **_HUB_SIGMOID,
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4,
            "v_head_dim": 4,
            "head_dim": 4,
            "rms_norm_eps": 1e-6,
        },
    ),
    (
        _case(
            "glm4-moe",
            "half of each head rotated, MTP on the last of two stages",
            {
                **_EXPERTS,
                **_SIGMOID,
                "moe_shared_expert_intermediate_size": 12,
                "qk_layernorm": True,
                "add_qkv_bias": True,
                "rotary_percent": 0.5,
            },
            tp=2,
            pp=2,
            etp=2,
        ),
        {
            **_HUB_SIGMOID,
            "model_type": "glm4_moe",
            "n_shared_experts": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "rope_parameters": {
                **_HUB["rope_parameters"],
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    (
        _case(
            "gpt-oss",
            "sinks, biases everywhere, clamped experts",
            {
                **_EXPERTS,
                "ffn_hidden_size": 12,
                "add_bias_linear": True,
                "add_qkv_bias": True,
                "softmax_type": "learnable",
                "activation_func": "quick_gelu",
                "glu_linear_offset": 1.0,
                "activation_func_clamp_value": 7.0,
            },
            **_EP,
        ),
        {
            **_HUB_EXPERTS,
            "model_type": "gpt_oss",
            "num_local_experts": 4,
            "intermediate_size": 12,
            "attention_bias": True,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
]
BEFORE, AFTER = 3, 4
"""Steps before the checkpoint of CONTINUED, and after it."""
CONTINUED = "hub-continued"
WINDOWS, LENGTH, TOKENS = 4, 12, 32


def windows() -> torch.Tensor:
    """[WINDOWS, LENGTH + 1] token ids of CONTINUED, whose vocabulary needs no padding."""
    stream = [(7 * i + i * i // 5) % TOKENS for i in range(WINDOWS * LENGTH + 1)]
    made = torch.tensor(stream)
    return torch.stack([made[n * LENGTH : (n + 1) * LENGTH + 1] for n in range(WINDOWS)])


_PAIRS.append(
    (
        Case(
            CONTINUED,
            "trained on tokens, with the losses of its own next steps",
            tp=2,
            pp=2,
            model={**_DENSE, "qk_layernorm": True},
            precision="fp32",
            optimizer="fully_reshardable",
        ),
        {**_HUB, "model_type": "qwen3", "vocab_size": TOKENS},
    )
)
HUB_CASES: dict[str, Case] = {
    case.name: replace(case, tied=hub["tie_word_embeddings"]) for case, hub in _PAIRS
}
HUB_CONFIGS: dict[str, dict[str, Any]] = {case.name: hub for case, hub in _PAIRS}
