"""DeepSpeed's configuration, completed by the job that it belongs to.

A key of the configuration is never changed. A missing or null key is added only if DeepSpeed's
default differs from the job.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

from zerotools.jobs.binding.bind import plain
from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, OPTIMIZER_DEFAULTS
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
    """Return the devices of optimizer and parameters, by the job file's names: its own, or
    DeepSpeed's."""
    if spec.engine != "deepspeed":
        return spec.offload.optimizer, spec.offload.params
    optimizer, params = (device_of(spec.deepspeed.tree, what) for what in ("optimizer", "param"))
    return _PLACES.get(optimizer, optimizer), _PLACES.get(params, params)


def completed(spec: JobSpec) -> ConfigTree:
    """Return `deepspeed.config` of `spec` with missing values from the job."""
    config = copy.deepcopy({n: v for n, v in spec.deepspeed.tree.items() if v is not None})
    train = spec.train
    per_rank = train.batch_size // spec.all_ranks
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
    for item in keys_of(spec.fp16):
        value, name = getattr(spec.fp16, item.name), item.metadata["deepspeed"]
        if value != KEYS[name].default:
            section.setdefault(name.removeprefix("fp16."), value)


def _complete_optimizer(config: ConfigTree, spec: JobSpec) -> None:
    name = optimizer_of(config) or spec.train.optimizer
    if name not in OPTIMIZER_DEFAULTS:
        return
    defaults = dict(OPTIMIZER_DEFAULTS[name])
    if at(config, "optimizer.params.torch_adam") is True:
        # torch's own decays every tensor by 0.01: if it is written out, the groups of the engine
        # hold.
        defaults["weight_decay"] = None
    values = dict(_optimizer_parameters(spec, defaults))
    if "optimizer" not in config:
        if name == "sgd" and spec.zero.stage:
            config.setdefault("zero_allow_untested_optimizer", True)
        config["optimizer"] = {"type": {"adamw": "AdamW", "sgd": "SGD"}[name], "params": values}
        return
    section = config["optimizer"]
    for key, value in values.items():
        if key not in section.get("params", {}) and value != defaults[key]:
            section.setdefault("params", {})[key] = value


def _optimizer_parameters(spec: JobSpec, known: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield those of the `known` parameters in `optimizer.params` that the job sets, with its
    values."""
    for item in keys_of(spec.train):
        section, _, parameter = (item.metadata["deepspeed"] or "").rpartition(".")
        if section == "optimizer.params" and parameter in known:
            yield parameter, plain(getattr(spec.train, item.name))


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
