"""What `engine = "deepspeed"` and `[deepspeed]` demand of a job."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.deepspeed_config import (
    at,
    contradictions,
    device_of,
    stage_of,
    unresolved,
)
from zerotools.jobs.tables.offload import OffloadSpec
from zerotools.jobs.tables.spec import JobSpec

_OWN_WRITERS = ("nebula", "datastates_ckpt", "checkpoint.writer")
_SHARED = "makes ranks share their sequences, and a job gives each rank its own"
_OWN_LOOPS = {
    "tensor_parallel.autotp_size": _SHARED,
    "tensor_parallel.tp.tp_size": _SHARED,
    "tensor_parallel.tensor_parallel.tp_size": _SHARED,
    "sequence_parallel_size": _SHARED,
    "autotuning.enabled": "tries settings out and exits, and a job trains",
    "compile.deepcompile": "is done by engine.compile(), which a job does not call",
    "data_efficiency.enabled": "works in DeepSpeed's data loader, and a job reads its data itself",
}
"""What cannot be in our loop, and why; 0, 1 and false switch it off."""


def check_deepspeed(spec: JobSpec) -> Iterator[str]:
    """What is wrong with the engine's keys."""
    config = spec.deepspeed.config
    if spec.engine != "deepspeed":
        if config is not None:
            yield (
                f'deepspeed.config: has no place in an engine = "{spec.engine}" job; set '
                'engine = "deepspeed", or leave [deepspeed] out'
            )
        return
    if config is None:
        yield 'engine = "deepspeed": needs deepspeed.config, DeepSpeed\'s JSON (or a table)'
    yield from _check_torch_only(spec)
    if spec.train.stop_after_nan > 1:
        yield (
            f"train.stop_after_nan = {spec.train.stop_after_nan}: DeepSpeed updates the weights "
            "before its gradients are known to be finite, so its jobs end at the first; leave it "
            "out"
        )
    if not spec.deepspeed.tree or spec.train.batch_size % spec.world_size:
        return
    autos = list(unresolved(spec.deepspeed.tree))
    for name in autos:
        yield f'deepspeed.config {name} = "auto": zerotools submit resolves it; give a value'
    if autos:
        return
    yield from contradictions(spec)
    yield from _check_writers(spec)
    if spec.train.precision == "fp16" and spec.zero.stage == 0:
        yield (
            "deepspeed.config fp16: at zero_optimization.stage 0 DeepSpeed 0.19 divides the "
            "gradients by a loss scale that it never multiplied the loss by; set stage 1, or bf16"
        )
    for name, why in _OWN_LOOPS.items():
        value = at(spec.deepspeed.tree, name)
        if value is True or value not in (None, 0, 1):
            yield f"deepspeed.config {name} = {show(value)}: {why}; remove it"
    yield from _check_nvme(spec)


def _check_nvme(spec: JobSpec) -> Iterator[str]:
    config = spec.deepspeed.tree
    below = {
        "optimizer": "and keeps the optimizer in host memory below",
        "param": "and leaves the weights where they are below",
    }
    for what, instead in below.items():
        section = f"deepspeed.config zero_optimization.offload_{what}"
        if device_of(config, what) != "nvme":
            continue
        if spec.lora.rank is not None:
            yield (
                f'{section}.device = "nvme": checkpoints would hold the weights alone, and '
                'adapters have no place there; leave [lora] out, or use "cpu"'
            )
        if stage_of(config) < 3:
            yield (
                f'{section}.device = "nvme": DeepSpeed does it at stage 3 alone, {instead}; set '
                'stage 3, or use "cpu"'
            )
        path = at(config, f"zero_optimization.offload_{what}.nvme_path")
        if not isinstance(path, str) or not path.startswith("/"):
            yield (
                f'{section}.device = "nvme": needs nvme_path beside it, the absolute path of a '
                "directory on the disk"
            )


def _check_torch_only(spec: JobSpec) -> Iterator[str]:
    own = {
        "offload": spec.offload != OffloadSpec(),
        "zero.shard_size": spec.zero.shard_size is not None,
        "train.compile": spec.train.compile,
    }
    for key, is_set in own.items():
        if is_set:
            yield (
                f'{key}: is of engine "torch"; what DeepSpeed does of the kind, deepspeed.config '
                "says: leave it out"
            )


def _check_writers(spec: JobSpec) -> Iterator[str]:
    config = spec.deepspeed.tree
    for name in _OWN_WRITERS:
        section = at(config, name)
        if section and at(config, f"{name}.enabled", True) is not False:
            yield (
                f"deepspeed.config {name}: writes checkpoints in the background, after the commit "
                "that makes them whole; remove it"
            )
    if at(config, "checkpoint.load_universal") is True:
        yield (
            "deepspeed.config checkpoint.load_universal = true: a job goes on from its own "
            "checkpoints, at another number of ranks by zerotools reshard; remove it"
        )
