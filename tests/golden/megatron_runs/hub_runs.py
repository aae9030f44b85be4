"""Tiny models of transformers, and a run of torch that trained one."""

from pathlib import Path

import torch

STEPS = 2
_BASE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 29,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
_EXPERTS = {**_BASE, "num_experts_per_tok": 2}
_QWEN = {
    **_EXPERTS,
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
MODELS = {
    "llama": ("llama", _BASE),
    "llama-mha": ("llama", {**_BASE, "num_key_value_heads": 4}),
    "llama-tied": ("llama", {**_BASE, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", _BASE),
    "qwen3": ("qwen3", _BASE),
    "mixtral": ("mixtral", {**_EXPERTS, "intermediate_size": 12, "num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", _QWEN),
    "qwen3_moe-mixed": ("qwen3_moe", {**_QWEN, "num_hidden_layers": 3, "mlp_only_layers": [0]}),
}


def _model(name: str):
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, sizes = MODELS[name]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    for each, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in each else 0.0, std=0.1)
    return model


def hub_model(name: str, where: Path) -> None:
    """The model as `save_pretrained` writes it, in bf16."""
    _model(name).to(torch.bfloat16).save_pretrained(where)


def hub_run(name: str, where: Path) -> None:
    """A file of torch's, of masters in fp32 under the names of the Hub, and the model's
    config.json."""
    where.mkdir(parents=True)
    weights, optimizer = _trained(name, STEPS)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["param_names"] = [list(weights)[number] for number in group["params"]]
    torch.save({"model": weights, "optimizer": state}, where / "checkpoint.pt")
    _model(name).config.save_pretrained(where)


def continued(name: str) -> dict[str, torch.Tensor]:
    """What torch's optimizer makes of it in as many steps again, as Megatron steps."""
    weights, optimizer = _trained(name, STEPS)
    _step(weights, optimizer, STEPS)
    found = {f"{each}|param": value for each, value in weights.items()}
    for each, value in weights.items():
        for role in ("exp_avg", "exp_avg_sq"):
            found[f"{each}|{role}"] = optimizer.state[value][role]
    return found


def _trained(name: str, steps: int):
    """The Hub's tensors, one for each expert, and the optimizer after so many steps."""
    import tempfile

    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as directory:
        _model(name).save_pretrained(directory)
        weights = load_file(Path(directory) / "model.safetensors")
    weights = dict(sorted(weights.items(), key=lambda item: item[1].dim() == 1))
    matrices = [value for value in weights.values() if value.dim() > 1]
    vectors = [value for value in weights.values() if value.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
    )
    _step(weights, optimizer, steps)
    return weights, optimizer


def _step(weights, optimizer, steps: int) -> None:
    """Gradients are made of each element's own value, in bf16, as in `live.train`, where Megatron's
    buffers of gradients are bf16, too."""
    for step in range(1, steps + 1):
        for value in weights.values():
            grad = value.to(torch.bfloat16).float() * 3 + 0.01 * step
            value.grad = grad.to(torch.bfloat16).float()
        optimizer.step()
