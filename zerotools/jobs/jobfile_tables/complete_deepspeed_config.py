"""Complete DeepSpeed's configuration with values of the job, and check the rules of `engine =
"deepspeed"`.

A key of the configuration is never changed. A missing or null key is added if DeepSpeed's default
may differ from the job's value.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import is_dataclass
from typing import Any

from zerotools.jobs.binding.bind import plain_json
from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.jobfile_tables.deepspeed import (
    BATCH,
    check_config,
    config_value,
    device_of,
    optimizer_of,
    precision_of,
    unresolved_auto,
)
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, OPTIMIZER_DEFAULTS

ConfigTree = dict[str, Any]
_PLACES = {"nvme": "disk"}


def offloaded_to(spec: JobSpec) -> tuple[str, str]:
    """Return the devices to which the optimizer and the parameters are offloaded, with the names
    that the job file has for devices. The function supports both engines.
    """
    if spec.engine != "deepspeed":
        return spec.offload.optimizer, spec.offload.params
    optimizer, params = (device_of(spec.deepspeed.tree, what) for what in ("optimizer", "param"))
    return _PLACES.get(optimizer, optimizer), _PLACES.get(params, params)


def completed_config(spec: JobSpec) -> ConfigTree:
    """Return the DeepSpeed configuration of the job, with missing values added from the job
    file.
    """
    config = copy.deepcopy({n: v for n, v in spec.deepspeed.tree.items() if v is not None})
    train = spec.train
    per_rank = train.batch_size // spec.all_ranks
    micro = train.micro_batch_size or per_rank
    config.setdefault(BATCH[1], micro)
    config.setdefault(BATCH[2], per_rank // int(config[BATCH[1]]))
    # 0 is written, too: DeepSpeed's behaviour without this key depends on its version.
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
    if config_value(config, "optimizer.params.torch_adam") is True:
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
    """Yield the parameters of `optimizer.params` that the job sets, with their values.

    Only parameters in `known` are considered.
    """
    for item in keys_of(spec.train):
        section, _, parameter = (item.metadata["deepspeed"] or "").rpartition(".")
        if section == "optimizer.params" and parameter in known:
            yield parameter, plain_json(getattr(spec.train, item.name))


def _complete_scheduler(config: ConfigTree, spec: JobSpec) -> None:
    kind = config_value(config, "scheduler.type")
    if kind not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        return
    parameters = config["scheduler"].setdefault("params", {})
    if spec.train.warmup_steps != 1000:
        # DeepSpeed 0.19.6 and later refuse 0.
        parameters.setdefault("warmup_num_steps", max(1, spec.train.warmup_steps))
    if kind != "WarmupLR" and spec.train.steps is not None:
        parameters.setdefault("total_num_steps", spec.train.steps)


def check_deepspeed(spec: JobSpec) -> Iterator[str]:
    """Yield each problem of a job that concerns the keys for engine deepspeed."""
    config = spec.deepspeed.config
    if spec.engine != "deepspeed":
        if config is not None:
            yield (
                f'deepspeed.config: cannot be used in an engine = "{spec.engine}" job; set '
                'engine = "deepspeed", or leave [deepspeed] out'
            )
        return
    if config is None:
        yield (
            'engine = "deepspeed": needs deepspeed.config, the path of DeepSpeed\'s JSON or a table'
        )
    yield from _check_torch_only(spec)
    if spec.train.optimizer in ("adam", "muon", "adamw8bit"):
        yield (
            f'train.optimizer = "{spec.train.optimizer}": only engine = "torch" has it; leave it '
            "out, and set the section optimizer in deepspeed.config"
        )
    if spec.train.stop_after_nan > 1:
        yield (
            f"train.stop_after_nan = {spec.train.stop_after_nan}: DeepSpeed may update the "
            "weights with gradients that are not finite, so its jobs end at the first such step; "
            "leave it out"
        )
    if not spec.deepspeed.tree or spec.train.batch_size % spec.all_ranks:
        return
    autos = list(unresolved_auto(spec.deepspeed.tree))
    for name in autos:
        yield f'deepspeed.config {name} = "auto": only zerotools submit replaces it; write a value'
    if autos:
        return
    yield from _contradictions(spec)
    if spec.train.precision == "fp16" and spec.zero.stage == 0:
        yield (
            "deepspeed.config fp16: at zero_optimization.stage 0, DeepSpeed 0.19 divides the "
            "gradients by the loss scale, but does not multiply the loss by it; set stage 1, or "
            "bf16"
        )
    yield from check_config(spec.deepspeed.tree)
    yield from _check_adapters(spec)


def _check_torch_only(spec: JobSpec) -> Iterator[str]:
    for key in _changed_keys_of("torch", spec, JobSpec(), ""):
        yield (
            f'{key}: only engine = "torch" has this key; leave it out, and set DeepSpeed\'s own '
            "key in deepspeed.config"
        )


def _changed_keys_of(engine: str, table: Any, unset: Any, where: str) -> Iterator[str]:
    """Yield each key and table that only `engine` has, and that does not have its default value."""
    for item in keys_of(table):
        value, default = getattr(table, item.name), getattr(unset, item.name)
        name = f"{where}{item.name}"
        if item.metadata["engine"] == engine and value != default:
            yield name
        elif is_dataclass(default):
            yield from _changed_keys_of(engine, value, default, f"{name}.")


def _check_adapters(spec: JobSpec) -> Iterator[str]:
    for what in ("optimizer", "param"):
        if spec.lora.rank is not None and device_of(spec.deepspeed.tree, what) == "nvme":
            yield (
                f'deepspeed.config zero_optimization.offload_{what}.device = "nvme": '
                "DeepSpeed's checkpoints would hold only the model's weights, not the adapters; "
                'leave [lora] out, or use "cpu"'
            )


def _contradictions(spec: JobSpec) -> Iterator[str]:
    """Yield each contradiction between `deepspeed.config` and other keys of the job."""
    config, train = spec.deepspeed.tree, spec.train
    per_rank = train.batch_size // spec.all_ranks
    micro = train.micro_batch_size or int(config_value(config, BATCH[1], per_rank))
    wanted: dict[str, tuple[str, int]] = {
        BATCH[0]: ("train.batch_size", train.batch_size),
        BATCH[1]: ("train.micro_batch_size", micro),
        BATCH[2]: ("train.batch_size / ranks / micro batch", per_rank // micro),
        "zero_optimization.stage": ("zero.stage", spec.zero.stage),
    }
    for name, (key, value) in wanted.items():
        said = config_value(config, name)
        if said is not None and said != value:
            yield f"deepspeed.config {name} = {said}: {key} is {value}; make them agree"
    if per_rank % micro:
        yield (
            f"deepspeed.config {BATCH[1]} = {micro}: must divide the {per_rank} sequences of a "
            f"rank (train.batch_size {train.batch_size} over {spec.all_ranks} ranks)"
        )
    said = precision_of(config)
    if said not in ("fp32", train.precision):
        yield (
            f"deepspeed.config {said}.enabled = true: train.precision is "
            f'"{train.precision}"; make them agree'
        )
