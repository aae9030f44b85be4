"""The rules of `engine = "deepspeed"` for the other tables of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.tables.deepspeed import (
    BATCH,
    at,
    check_config,
    device_of,
    precision_of,
    unresolved,
)
from zerotools.jobs.tables.spec import JobSpec


def check_deepspeed(spec: JobSpec) -> Iterator[str]:
    """Yield the problems with the engine's keys."""
    config = spec.deepspeed.config
    if spec.engine != "deepspeed":
        if config is not None:
            yield (
                f'deepspeed.config: cannot be used in an engine = "{spec.engine}" job; set '
                'engine = "deepspeed", or leave [deepspeed] out'
            )
        return
    if config is None:
        yield 'engine = "deepspeed": needs deepspeed.config, DeepSpeed\'s JSON (or a table)'
    yield from _check_torch_only(spec)
    if spec.train.optimizer in ("adam", "muon", "adamw8bit"):
        yield (
            f'train.optimizer = "{spec.train.optimizer}": only engine = "torch" has it; leave it '
            "out, and set optimizer in deepspeed.config"
        )
    if spec.train.stop_after_nan > 1:
        yield (
            f"train.stop_after_nan = {spec.train.stop_after_nan}: DeepSpeed updates the weights "
            "before its gradients are known to be finite, so its jobs end at the first; leave it "
            "out"
        )
    if not spec.deepspeed.tree or spec.train.batch_size % spec.all_ranks:
        return
    autos = list(unresolved(spec.deepspeed.tree))
    for name in autos:
        yield f'deepspeed.config {name} = "auto": zerotools submit resolves it; give a value'
    if autos:
        return
    yield from _contradictions(spec)
    if spec.train.precision == "fp16" and spec.zero.stage == 0:
        yield (
            "deepspeed.config fp16: at zero_optimization.stage 0 DeepSpeed 0.19 divides the "
            "gradients by a loss scale that it never multiplied the loss by; set stage 1, or bf16"
        )
    yield from check_config(spec.deepspeed.tree)
    yield from _check_adapters(spec)


def _check_torch_only(spec: JobSpec) -> Iterator[str]:
    for key in _changed_keys_of("torch", spec, JobSpec(), ""):
        yield (
            f'{key}: only engine = "torch" has it; leave it out, and set what DeepSpeed has of '
            "this kind in deepspeed.config"
        )


def _changed_keys_of(engine: str, table: Any, unset: Any, where: str) -> Iterator[str]:
    """Yield the keys and tables that only `engine` has, and that differ from their default."""
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
                f'deepspeed.config zero_optimization.offload_{what}.device = "nvme": its '
                "checkpoints would hold only the model's weights, and no adapters; leave "
                '[lora] out, or use "cpu"'
            )


def _contradictions(spec: JobSpec) -> Iterator[str]:
    """Yield the contradictions between `deepspeed.config` and the job."""
    config, train = spec.deepspeed.tree, spec.train
    per_rank = train.batch_size // spec.all_ranks
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
            f"rank (train.batch_size {train.batch_size} over {spec.all_ranks} ranks)"
        )
    said = precision_of(config)
    if said not in ("fp32", train.precision):
        yield (
            f"deepspeed.config {said}.enabled = true: train.precision is "
            f'"{train.precision}"; make them agree'
        )
