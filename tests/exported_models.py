"""Small models of transformers of many architectures, with weights that are the same each time."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_LATENT: dict[str, Any] = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_HEAD: dict[str, Any] = {"head_dim": 8}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": _HEAD, "gemma": _HEAD, "gemma2": _HEAD,
    "gemma3_text": _HEAD, "gpt2": _GPT, "phi": {}, "phi3": {}, "mixtral": _EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**_EXPERTS, **_HEAD}, "granite": {}, "smollm3": {}, "stablelm": {},
    "starcoder2": {}, "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "gpt_neox": {},
    "olmo": {}, "olmo2": {}, "cohere": {}, "glm4": _HEAD,
    "glm4_moe": {**_EXPERTS, **_HEAD, "first_k_dense_replace": 1}, "gpt_oss": {**_EXPERTS, **_HEAD},
    "deepseek_v3": _LATENT, "deepseek_v2": {**_LATENT, "topk_method": "greedy"}, "falcon": {},
    "bloom": {"n_layer": 2, "n_head": 4}, "gptj": {**_GPT, "rotary_dim": 8}, "gpt_bigcode": _GPT,
    "olmoe": _EXPERTS, "granitemoe": _EXPERTS, "nemotron": {}, "exaone4": {}, "ernie4_5": {},
    "hunyuan_v1_dense": _HEAD, "seed_oss": _HEAD,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "t5": {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4},
    "bert": {},
}  # fmt: skip
"""What the config of each `model_type` has beside or instead of `_SMALL`."""
_CLASSES = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration"}


def config_of(kind: str, *, is_tied: bool) -> dict[str, Any]:
    """The config.json that `save_pretrained` writes of the model."""
    config = _config(kind, is_tied)
    return {**config.to_dict(), "architectures": [class_of(kind, is_tied).__name__]}


def class_of(kind: str, is_tied: bool = False) -> Any:
    """The class of the model."""
    import transformers
    from transformers import AutoModelForCausalLM

    if kind in _CLASSES:
        return getattr(transformers, _CLASSES[kind])
    return AutoModelForCausalLM._model_mapping[type(_config(kind, is_tied))]


def built(kind: str, *, is_tied: bool) -> Any:
    """The model, in float32."""
    import torch

    torch.manual_seed(7)
    return class_of(kind, is_tied)(_config(kind, is_tied)).eval()


def varied(kind: str, variant: str, number: int) -> Any:
    """The model of `kind`: plain, tied, with adapters, or in a wrapper.

    The wrapper is named by `variant`, or chosen by `number` where that is "wrapped".
    """
    model = built(kind, is_tied=variant == "tied")
    if variant == "wrapped":
        variant = [*_WRAPPERS][number % len(_WRAPPERS)]
    if variant in _WRAPPERS:
        return _WRAPPERS[variant](model)
    if variant == "lora":
        from peft import LoraConfig, get_peft_model

        return get_peft_model(
            model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        )
    return model


def _in_attribute(model: Any) -> Any:
    """In a module of Lightning, which calls it `model`."""
    return _inside("model", model)


def _compiled(model: Any) -> Any:
    import torch

    return torch.compile(model)


def _checkpointed(model: Any) -> Any:
    """With a wrapper around every block that computes activations again, in DDP's module."""
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for number, block in enumerate(module):
                module[number] = checkpoint_wrapper(block)
    return _inside("module", model)


_WRAPPERS = {"attribute": _in_attribute, "compiled": _compiled, "checkpointed": _checkpointed}


def _inside(name: str, model: Any) -> Any:
    from torch import nn

    class Trainer(nn.Module):
        def forward(self, **inputs: Any) -> Any:
            return getattr(self, name)(**inputs)

    trainer = Trainer()
    setattr(trainer, name, model)
    return trainer


def _config(kind: str, is_tied: bool) -> Any:
    from transformers import AutoConfig

    own = {**_SMALL, **KINDS[kind], "tie_word_embeddings": is_tied}
    return AutoConfig.for_model(kind, **own)
