"""What one rank runs to train adapters by PEFT and DeepSpeed: `python -m
tests.golden.deepspeed_runs.adapters`.

A loop of a user's own: `get_peft_model`, `deepspeed.initialize`, some steps, `save_checkpoint`. For
each run of `runs.json` ({name: {"stage", "lora", "second", "exclude_frozen"}}) the checkpoint goes
to `NAME/checkpoint`, with the config that PEFT writes, and what the model says of `TOKENS` to
`NAME/logits.safetensors`. The base model is in `base`.
"""

import json
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from .launch import leave

TOKENS = torch.arange(24).reshape(2, 12)


def build(run: dict[str, Any]) -> Any:
    """The model with its adapters, of which none is zero."""
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained("base"),
        LoraConfig(task_type="CAUSAL_LM", **run["lora"]),
    )
    if run.get("second"):
        model.add_adapter("second", LoraConfig(task_type="CAUSAL_LM", **run["second"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def train(name: str, run: dict[str, Any]) -> None:
    """Collective."""
    model = build(run)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": run["stage"], "stage3_param_persistence_threshold": 0},
        },
    )
    for _ in range(2):
        batch = TOKENS[dist.get_rank() % 2][None]
        engine.backward(engine(input_ids=batch, labels=batch).loss)
        engine.step()
    # Without what is frozen, a checkpoint has no weight of the base.
    engine.save_checkpoint(
        f"{name}/checkpoint", exclude_frozen_parameters=run.get("exclude_frozen", False)
    )
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=TOKENS).logits
    if dist.get_rank() == 0:
        save_file({"logits": logits.contiguous()}, f"{name}/logits.safetensors")
        for adapter, config in model.peft_config.items():
            config.save_pretrained(f"{name}/config-{adapter}")
    dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name, run in json.loads(Path("runs.json").read_text()).items():
        train(name, run)
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
