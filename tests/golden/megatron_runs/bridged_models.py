"""The model of this rank as a program makes it of a directory of the Hub, with its weights."""

from pathlib import Path

import torch
from transformers import AutoConfig

from .bridged_cases import BRIDGE, Bridged

DIVISOR = 8
_PLAIN = {
    "use_cpu_initialization": True,
    "params_dtype": torch.float32,
    "pipeline_dtype": torch.float32,
    "bf16": False,
    "gradient_accumulation_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
}
_PLAIN_EXPERTS = {
    "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "none",
    "moe_permute_fusion": False,
    "moe_shared_expert_overlap": False,
}


def model_of(case: Bridged, hub: Path):
    """The model, and what saves it as the program does, or None."""
    if case.program == BRIDGE:
        from megatron.bridge import AutoBridge

        bridge = AutoBridge.from_hf_pretrained(str(hub))
        made = of_bridge(bridge, case)
        return made[0], lambda where: bridge.save_megatron_model(made, where)
    return _of_mcore_bridge(case, hub), None


def _degrees(case: Bridged) -> dict[str, int]:
    return {
        "tensor_model_parallel_size": case.tp,
        "pipeline_model_parallel_size": case.pp,
        "expert_model_parallel_size": case.ep,
        "expert_tensor_parallel_size": 1 if case.ep > 1 else case.tp,
    }


def _start(case: Bridged) -> None:
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(**_degrees(case))
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def of_bridge(bridge, case: Bridged, dtype=torch.float32, *, load_weights=True):
    """The model, in a list, as Megatron-Bridge makes it in `dtype`."""
    provider = bridge.to_megatron_provider(load_weights=load_weights)
    has_experts = bool(provider.num_moe_experts)
    options = {**_PLAIN, **_degrees(case), **(_PLAIN_EXPERTS if has_experts else {})}
    options |= {"params_dtype": dtype, "pipeline_dtype": dtype, "bf16": dtype == torch.bfloat16}
    options |= {"make_vocab_size_divisible_by": DIVISOR, "autocast_dtype": dtype}
    if getattr(provider, "multi_latent_attention", False):
        # Bridge takes YaRN for granted, and leaves its own rank where the Hub has none.
        options |= {"rope_type": "rope", "q_lora_rank": case.hub["q_lora_rank"]}
    if getattr(provider, "moe_router_enable_expert_bias", False):
        options["moe_router_score_function"] = "sigmoid"
    # First values take long, and those that are not loaded here will be.
    options |= {"perform_initialization": load_weights, "use_cpu_initialization": load_weights}
    for name, value in options.items():
        setattr(provider, name, value)
    provider.finalize()
    return provider.provide_distributed_model(
        wrap_with_ddp=False, use_cpu_initialization=load_weights, mixed_precision_wrapper=None
    )


def _of_mcore_bridge(case: Bridged, hub: Path):
    from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config

    _start(case)
    found = hf_to_mcore_config(AutoConfig.from_pretrained(hub))
    rows = -(-case.hub["vocab_size"] // (DIVISOR * case.tp)) * DIVISOR * case.tp
    config = ModelConfig(**{**found, **_PLAIN, **_degrees(case), "padded_vocab_size": rows})
    (made,) = get_mcore_model(config)
    config.bridge.load_weights([made], str(hub))
    return made
