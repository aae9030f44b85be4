"""Models of the Hub that other programs put into Megatron-Core: `PROGRAM-VERSION/NAME` below
tests/golden. The program makes the model of its own layers and loads the weights; several ranks
save it."""

from dataclasses import dataclass, replace
from typing import Any

_SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 32,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {
    **_SMALL,
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_LATENT: dict[str, Any] = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
}
_SIGMOID: dict[str, Any] = {**_LATENT, "q_lora_rank": 8, "rope_interleave": True}
BRIDGE, MCORE_BRIDGE = "megatron-bridge", "mcore-bridge"


@dataclass(frozen=True)
class Bridged:
    """`hub`: what the model's config.json says, `model_type` and all."""

    name: str
    hub: dict[str, Any]
    program: str = BRIDGE
    tp: int = 2
    pp: int = 1
    ep: int = 1
    dp: int = 1
    keep: bool = True

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    def alone(self) -> "Bridged":
        """The same on one rank."""
        return replace(self, tp=1, pp=1, ep=1, dp=1)


def _dense(kind: str, own: dict[str, Any] | None = None, **options: Any) -> Bridged:
    hub = {**_SMALL, **(own or {}), "model_type": kind}
    return Bridged(options.pop("name", kind), hub, pp=2, **options)


def _mixture(kind: str, hub: dict[str, Any], **options: Any) -> Bridged:
    named = {**hub, "model_type": kind}
    return Bridged(options.pop("name", kind), named, ep=2, dp=2, **options)


_GEMMA = {"tie_word_embeddings": True, "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-5}
"""Bridge has 1e-5 in norms behind attention and MLP, whatever the model says."""
_WIDE = {"sliding_window": 32}
CASES = {
    f"{case.program}/{case.name}": case
    for case in (
        _dense("gemma2", {**_GEMMA, **_WIDE}),
        _dense("gemma3_text", {**_GEMMA, **_WIDE}),
        _dense("mistral", {"sliding_window": None}),
        _mixture("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
        _mixture(
            "qwen3_moe",
            {**_EXPERTS, "mlp_only_layers": [], "decoder_sparse_step": 1},
            keep=False,
        ),
        _dense("llama", keep=False),
        _dense("qwen2", keep=False),
        _dense("qwen3", {"tie_word_embeddings": True}, keep=False),
        _mixture("deepseek_v2", {**_LATENT, "q_lora_rank": 8}, name="deepseek_v2-q", keep=False),
        _mixture("deepseek_v3", _SIGMOID, keep=False),
        _mixture("glm4_moe", {**_LATENT, "head_dim": 8, "use_qk_norm": True}, keep=False),
        _mixture(
            "gpt_oss",
            {
                **_EXPERTS,
                "intermediate_size": 12,
                "num_local_experts": 4,
                "attention_bias": True,
                "layer_types": ["full_attention", "full_attention"],
                "rope_scaling": None,
            },
            keep=False,
        ),
        _dense("glm4", {"attention_bias": True}, program=MCORE_BRIDGE),
    )
}
