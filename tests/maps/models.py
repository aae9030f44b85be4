"""Tiny models of transformers with random weights, one for each kind of model that a map is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
}
_LATENT: dict[str, Any] = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "gemma": ("gemma", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {"tie_word_embeddings": True, "head_dim": 12}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "glm": ("glm", {"attention_bias": False}),
    "glm4": ("glm4", {"attention_bias": True, "num_key_value_heads": 1}),
    "phi3": ("phi3", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen2-moe": (
        "qwen2_moe",
        {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 20},
    ),
    "qwen3-moe": ("qwen3_moe", {**_EXPERTS, "num_experts": 4, "mlp_only_layers": []}),
    "qwen3-moe-mixed": ("qwen3_moe", {**_EXPERTS, "num_experts": 4, "mlp_only_layers": [0]}),
    "deepseek-v2": ("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
    "deepseek-v3": ("deepseek_v3", {**_LATENT, "q_lora_rank": 20}),
    "glm4-moe": (
        "glm4_moe",
        {
            **_EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""The `model_type` of each, and what its config has beside or instead of `_SMALL`."""


def config(name: str) -> dict[str, Any]:
    """The config.json of a model, without what transformers has for keys that are left out."""
    kind, own = CONFIGS[name]
    return {**_SMALL, **own, "model_type": kind}


def made(name: str) -> Any:
    """The model, in float32; no two of its elements are likely to be equal."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, own = CONFIGS[name]
    torch.manual_seed(sorted(CONFIGS).index(name))
    config = AutoConfig.for_model(kind, **{**_SMALL, **own})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape) / 8)
    return model.eval()


NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt-neox": ("gpt_neox", {}),
    "granite": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "opt": ("opt", {"ffn_dim": 24, "word_embed_proj_dim": 16}),
    "opt-norms-behind": ("opt", {"do_layer_norm_before": False, "ffn_dim": 24}),
    "phi": ("phi", {"qk_layernorm": True}),
    "smollm3": ("smollm3", {}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {}),
}
"""The same of models that have no map."""


def built_without_values(
    name: str, **more: Any
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]], set[str]]:
    """The config of a model, its names and shapes in memory, and the names that it ties."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, own = {**CONFIGS, **NAMED}[name]
    config = AutoConfig.for_model(kind, **{**_SMALL, **own, **more})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    tree = {**config.to_dict(), "architectures": [type(model).__name__]}
    return tree, shapes, {*model.all_tied_weights_keys}


def with_mtp(folder: Path) -> dict[str, Any]:
    """The tensors in `folder`, where a layer that predicts a second token (MTP) is added as the Hub
    has it: behind the last layer, made as that is, with copies of embedding and head."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    layers, hidden = _SMALL["num_hidden_layers"], _SMALL["hidden_size"]
    old, new = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    torch.manual_seed(99)
    shapes = {n.replace(old, new): v.shape for n, v in tensors.items() if n.startswith(old)}
    for kind in ("enorm", "hnorm", "shared_head.norm"):
        shapes[f"{new}{kind}.weight"] = torch.Size([hidden])
    shapes[f"{new}eh_proj.weight"] = torch.Size([hidden, 2 * hidden])
    tensors |= {name: torch.rand(shape) / 8 for name, shape in shapes.items()}
    tensors[f"{new}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{new}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return tensors


def saved(name: str, folder: Path) -> Any:
    """The model, written by `save_pretrained` into `folder`."""
    model = made(name)
    model.save_pretrained(folder)
    return model
