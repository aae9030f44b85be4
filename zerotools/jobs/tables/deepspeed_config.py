"""DeepSpeed's configuration against the job that it belongs to: what it says, and what it lacks.

A key that the configuration has is never changed. One that it lacks, or has as null, is added only
where DeepSpeed's default is not what the job says.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.jobs.binding.bind import plain
from zerotools.jobs.tables.spec import JobSpec

ConfigTree = dict[str, Any]
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
ADAMS = ("adam", "adamw")
_PLACES = {"nvme": "disk"}
_OWN_AUTOS = ("zero_optimization.zenflow.", "pipeline.stages", "data_types.keep_in_fp32_modules")


def at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value of a dotted key of `config`."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return default if found is None else found


def stage_of(config: Mapping[str, Any]) -> int:
    """The ZeRO stage; `"zero_optimization": true` is an old spelling of 1."""
    if config.get("zero_optimization") is True:
        return 1
    return int(at(config, "zero_optimization.stage", 0))


def precision_of(config: Mapping[str, Any]) -> str:
    """`fp16`, `bf16` or `fp32`."""
    if at(config, "fp16.enabled") is True:
        return "fp16"
    return "bf16" if at(config, "bf16.enabled", at(config, "bfloat16.enabled")) is True else "fp32"


def device_of(config: Mapping[str, Any], what: str) -> str:
    """Where `what` (optimizer, param) is offloaded to: none, cpu or nvme."""
    section = at(config, f"zero_optimization.offload_{what}", {})
    device = at(section, "device", "none") if isinstance(section, Mapping) else "none"
    old = ("cpu_offload",) if what == "optimizer" else ("cpu_offload_param", "cpu_offload_params")
    if device == "none" and any(at(config, f"zero_optimization.{name}") is True for name in old):
        return "cpu"
    return str(device).lower()


def offloaded_to(spec: JobSpec) -> tuple[str, str]:
    """Where optimizer and parameters are, by the job file's names: its own, or DeepSpeed's."""
    if spec.engine != "deepspeed":
        return spec.offload.optimizer, spec.offload.params
    optimizer, params = (device_of(spec.deepspeed.tree, what) for what in ("optimizer", "param"))
    return _PLACES.get(optimizer, optimizer), _PLACES.get(params, params)


def on_nvme(config: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed keeps state on a disk, which it saves so that it cannot be resumed."""
    return "nvme" in (device_of(config, "optimizer"), device_of(config, "param"))


def optimizer_of(config: Mapping[str, Any]) -> str:
    """The optimizer by the job file's name for it, DeepSpeed's own in lower case where it has none;
    empty where the configuration has no optimizer."""
    name = str(at(config, "optimizer.type", "")).lower()
    return "adamw" if name in ADAMS else name


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


def unresolved(tree: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The dotted keys whose value is still `"auto"`, but those where DeepSpeed has such a value."""
    for name, value in tree.items():
        if value == "auto" and not f"{where}{name}".startswith(_OWN_AUTOS):
            yield f"{where}{name}"
        elif isinstance(value, Mapping):
            yield from unresolved(value, f"{where}{name}.")


def contradictions(spec: JobSpec) -> Iterator[str]:
    """Where `deepspeed.config` says something else than the job."""
    config, train = spec.deepspeed.tree, spec.train
    per_rank = train.batch_size // spec.world_size
    micro = train.micro_batch_size or int(at(config, BATCH[1], per_rank))
    wanted: dict[str, tuple[str, int]] = {
        BATCH[0]: ("train.batch_size", train.batch_size),
        BATCH[1]: ("train.micro_batch_size", micro),
        BATCH[2]: ("train.batch_size / ranks / micro batch", per_rank // micro),
        "zero_optimization.stage": ("zero.stage", spec.zero.stage),
    }
    for name, (key, value) in wanted.items():
        said = at(config, name)
        if said is not None and said != value:
            yield f"deepspeed.config {name} = {said}: {key} is {value}; make them agree"
    if per_rank % micro:
        yield (
            f"deepspeed.config {BATCH[1]} = {micro}: must divide the {per_rank} sequences of a "
            f"rank (train.batch_size {train.batch_size} over {spec.world_size} ranks)"
        )
    said = precision_of(config)
    if said not in ("fp32", train.precision):
        yield (
            f"deepspeed.config {said}.enabled = true: train.precision is "
            f'"{train.precision}"; make them agree'
        )
