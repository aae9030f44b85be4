"""DeepSpeed's configuration, completed by the job that it belongs to.

A key that the configuration has is never changed. One that it lacks, or has as null, is added only
where DeepSpeed's default is not what the job says.
"""

from __future__ import annotations

import copy
from typing import Any

from zerotools.jobs.binding.bind import plain
from zerotools.jobs.tables.deepspeed import (
    BATCH,
    at,
    device_of,
    optimizer_of,
    precision_of,
)
from zerotools.jobs.tables.spec import JobSpec

ConfigTree = dict[str, Any]
_PLACES = {"nvme": "disk"}


def offloaded_to(spec: JobSpec) -> tuple[str, str]:
    """Where optimizer and parameters are, by the job file's names: its own, or DeepSpeed's."""
    if spec.engine != "deepspeed":
        return spec.offload.optimizer, spec.offload.params
    optimizer, params = (device_of(spec.deepspeed.tree, what) for what in ("optimizer", "param"))
    return _PLACES.get(optimizer, optimizer), _PLACES.get(params, params)


def completed(spec: JobSpec) -> ConfigTree:
    """`deepspeed.config` of `spec` with what it lacks of the job."""
    config = copy.deepcopy({n: v for n, v in spec.deepspeed.tree.items() if v is not None})
    train = spec.train
    per_rank = train.batch_size // spec.world_size
    micro = train.micro_batch_size or per_rank
    config.setdefault(BATCH[1], micro)
    config.setdefault(BATCH[2], per_rank // int(config[BATCH[1]]))
    # 0 too: what DeepSpeed does without this key depends on its version.
    config.setdefault("gradient_clipping", train.max_grad_norm)
    if spec.zero.stage and not isinstance(config.get("zero_optimization"), bool):
        config.setdefault("zero_optimization", {}).setdefault("stage", spec.zero.stage)
    if train.precision != "fp32" and precision_of(config) == "fp32":
        config.setdefault(train.precision, {})["enabled"] = True
    if train.precision == "fp16":
        _complete_scale(config["fp16"], spec)
    _complete_optimizer(config, spec)
    _complete_scheduler(config, spec)
    return config


def _complete_scale(section: ConfigTree, spec: JobSpec) -> None:
    defaults = {"loss_scale": 0.0, "initial_scale_power": 16, "loss_scale_window": 1000}
    defaults |= {"hysteresis": 2, "consecutive_hysteresis": False, "min_loss_scale": 1.0}
    for name, default in defaults.items():
        value = getattr(spec.fp16, name)
        if value != default:
            section.setdefault(name, value)


def _complete_optimizer(config: ConfigTree, spec: JobSpec) -> None:
    train = spec.train
    values: ConfigTree = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    defaults: ConfigTree = {"lr": 1e-3, "weight_decay": 0.0}
    if at(config, "optimizer.params.torch_adam") is True:
        # torch's own decays by 0.01, every tensor: written out, the groups of the engine hold.
        defaults["weight_decay"] = None
    name = optimizer_of(config) or train.optimizer
    if name == "adamw":
        values |= {"betas": plain(train.betas), "eps": train.eps}
        defaults |= {"betas": [0.9, 0.999], "eps": 1e-8}
    elif name == "sgd":
        values["momentum"], defaults["momentum"] = train.momentum, 0.0
        if spec.zero.stage and "optimizer" not in config:
            config.setdefault("zero_allow_untested_optimizer", True)
    else:
        return
    if "optimizer" not in config:
        config["optimizer"] = {"type": {"adamw": "AdamW", "sgd": "SGD"}[name], "params": values}
        return
    section = config["optimizer"]
    for key, value in values.items():
        if key not in section.get("params", {}) and value != defaults[key]:
            section.setdefault("params", {})[key] = value


def _complete_scheduler(config: ConfigTree, spec: JobSpec) -> None:
    kind = at(config, "scheduler.type")
    if kind not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        return
    parameters = config["scheduler"].setdefault("params", {})
    if spec.train.warmup_steps != 1000:
        # DeepSpeed 0.19.6 and later refuse 0.
        parameters.setdefault("warmup_num_steps", max(1, spec.train.warmup_steps))
    if kind != "WarmupLR" and spec.train.steps is not None:
        parameters.setdefault("total_num_steps", spec.train.steps)
