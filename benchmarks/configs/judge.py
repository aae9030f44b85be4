"""What DeepSpeed and Hugging Face make of configs, for `benchmarks.configs`: JSON in and out.

Every `"auto"` is what the Trainer resolves it to with its default arguments (the precision: what
the job has); where there is no optimizer section, its AdamW and its linear schedule.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig

SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
HUGGING_FACE = {
    "learning_rate": 5e-5,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.0,
    "optimizer": "adamw",
}
HIDDEN = 64


def config_of(tree: dict[str, Any], world_size: int) -> DeepSpeedConfig:
    """DeepSpeed's own reading of `tree` for so many ranks."""

    class Sized(DeepSpeedConfig):
        def _initialize_params(self, param_dict: Any) -> None:
            self.world_size = world_size
            super()._initialize_params(param_dict)

    return Sized(copy.deepcopy(tree))


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """Whether DeepSpeed takes the row's JSON, and what the row would train otherwise."""
    verdict: dict[str, Any] = {"judged": "", "wrong": []}
    has = row["effective"]
    if row["engine"] == "deepspeed" and row["given"] is not None:
        try:
            taken = config_of(row["given"], has["world_size"])
            params = taken.optimizer_params or {}
            if "max_grad_norm" in params:
                raise ValueError("optimizer.params.max_grad_norm: engine.py refuses it")
            if taken.optimizer_name is not None:
                _optimizer(taken.optimizer_name)
        except Exception as error:
            verdict["judged"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return verdict
    if row["kind"] == "deepspeed":
        tree = row["tree"]
    else:
        tree = accelerates(row["tree"])
        if tree is None:
            return verdict
    try:
        wants = truth(tree, has)
    except Exception as error:
        verdict["wrong"] = [f"the original is refused: {type(error).__name__}: {error}"[:200]]
        if row["engine"] == "deepspeed" or row["kind"] == "deepspeed":
            verdict["wrong"] = []
        return verdict
    if row["engine"] == "deepspeed":
        if row["given"] is None:
            return verdict
        has = {**has, **values_of(config_of(row["given"], has["world_size"]), has)}
    verdict["wrong"] = [
        f"{name} {has[name]} for {value}" for name, value in wants.items() if has[name] != value
    ]
    return verdict


def accelerates(tree: dict[str, Any]) -> dict[str, Any] | None:
    """The DeepSpeed configuration that accelerate makes of its section; None: none."""
    section = tree.get("deepspeed_config") or {}
    if tree.get("distributed_type") != "DEEPSPEED" or section.get("deepspeed_config_file"):
        return None
    from accelerate.utils import DeepSpeedPlugin

    names = ("zero_stage", "gradient_clipping", "gradient_accumulation_steps")
    names += ("offload_optimizer_device", "offload_param_device")
    plugin = DeepSpeedPlugin(**{n: section[n] for n in names if section.get(n) is not None})
    plugin.set_mixed_precision(str(tree.get("mixed_precision") or "no").replace("False", "no"))
    config: dict[str, Any] = plugin.hf_ds_config.config
    return {**config, "train_micro_batch_size_per_gpu": "auto"}


def truth(tree: dict[str, Any], has: dict[str, Any]) -> dict[str, Any]:
    """What the Trainer and DeepSpeed train with, in the row's own words."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    tree = _without_nulls(tree)
    zero = tree.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage") == "auto":
        zero["stage"] = 2
    for name in ("amp", "sparse_gradients", "elasticity", "compression_training", "nebula"):
        if str(tree.get(name)).lower() in ("false", "{}") or "'enabled': False" in str(
            tree.get(name)
        ):
            del tree[name]
    resolved = HfTrainerDeepSpeedConfig(copy.deepcopy(tree))
    arguments = SimpleNamespace(
        world_size=has["world_size"],
        per_device_train_batch_size=has["micro_batch_size"],
        gradient_accumulation_steps=has["batch_size"]
        // has["world_size"]
        // has["micro_batch_size"],
        max_grad_norm=1.0,
        learning_rate=5e-5,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        save_on_each_node=False,
        fp16=has["precision"] == "fp16",
        fp16_full_eval=False,
        bf16=has["precision"] == "bf16",
        bf16_full_eval=False,
        get_warmup_steps=lambda _: 0,
    )
    resolved.mismatches = []
    resolved.trainer_config_process(arguments)
    resolved.mismatches = []
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
    resolved.trainer_config_finalize(arguments, model, has["steps"])
    resolved.config.setdefault("train_micro_batch_size_per_gpu", has["micro_batch_size"])
    values = values_of(config_of(resolved.config, has["world_size"]), has)
    asked = [tree.get(name) or {} for name in ("fp16", "bf16", "bfloat16")]
    if any(section.get("enabled") == "auto" for section in asked):
        values["precision"] = has["precision"]
    return values


def _without_nulls(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _without_nulls(v) for k, v in tree.items() if v is not None}
    return tree


def values_of(config: DeepSpeedConfig, has: dict[str, Any]) -> dict[str, Any]:
    """The values of `config` that both engines have."""
    zero = config.zero_config
    fp16, bf16 = config.float16_config, config.bfloat16_config
    optimizer, params = zero.offload_optimizer, zero.offload_param
    values: dict[str, Any] = {
        "stage": int(zero.stage),
        "precision": "fp16" if fp16.enabled else "bf16" if bf16.enabled else "fp32",
        "max_grad_norm": float(config.gradient_clipping),
        "offload.optimizer": _place(optimizer),
        "offload.params": _place(params) if int(zero.stage) == 3 else "none",
        "batch_size": config.train_batch_size,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
    }
    if fp16.enabled:
        names = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis")
        names += ("consecutive_hysteresis", "min_loss_scale")
        values |= {f"fp16.{name}": getattr(fp16, name) for name in names}
    values |= _optimized(config)
    kind = config.scheduler_name
    params = dict(config.scheduler_params or {})
    if kind in SCHEDULES:
        values["schedule"] = SCHEDULES[kind]
        values["warmup_steps"] = params.get("warmup_num_steps", 1000)
        if params.get("warmup_max_lr", 1e-3) != 1e-3:
            values["learning_rate"] = params["warmup_max_lr"]
        if not has["warmup_steps"]:
            values["warmup_steps"] = 0 if values["warmup_steps"] <= 1 else values["warmup_steps"]
    elif kind is None:
        values |= {"schedule": "linear", "warmup_steps": 0} if "_hf" in values else {}
    values.pop("_hf", None)
    return {name: value for name, value in values.items() if name in has}


def _place(section: Any) -> str:
    device = "none" if section is None else str(getattr(section.device, "value", section.device))
    return {"nvme": "disk"}.get(device, device)


def _optimized(config: DeepSpeedConfig) -> dict[str, Any]:
    name = config.optimizer_name
    if name is None:
        return {**HUGGING_FACE, "_hf": True}
    params = dict(config.optimizer_params or {})
    kind = _optimizer(name, bool(params.get("torch_adam")))
    names = {"lr": "learning_rate", "betas": "betas", "eps": "eps"}
    names |= {"weight_decay": "weight_decay", "momentum": "momentum"}
    defaults = inspect.signature(kind).parameters
    values: dict[str, Any] = {}
    for theirs, ours in names.items():
        if theirs in defaults:
            value = params.get(theirs, defaults[theirs].default)
            values[ours] = [float(v) for v in value] if theirs == "betas" else float(value)
    values["optimizer"] = {"adam": "adamw"}.get(name, name.lower())
    if values["optimizer"] == "sgd":
        values.pop("eps", None)
    else:
        values.pop("momentum", None)
    return values


def _optimizer(name: str, torch_adam: bool = False) -> Any:
    import torch
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    if name in ("adam", "adamw"):
        return torch.optim.AdamW if torch_adam else FusedAdam
    if name in DEEPSPEED_OPTIMIZERS:
        return FusedAdam
    return getattr(torch.optim, name)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    told = [judge(row) for row in json.loads(sys.stdin.read())]
    sys.stdout.write("\n" + json.dumps(told))
