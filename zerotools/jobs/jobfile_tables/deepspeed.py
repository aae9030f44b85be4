"""`[deepspeed]` of the job file: the configuration for engine `deepspeed`, and functions that
read values in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
ADAMS = ("adam", "adamw")
_OWN_AUTOS = ("zero_optimization.zenflow.", "pipeline.stages", "data_types.keep_in_fp32_modules")
_OWN_WRITERS = ("nebula", "datastates_ckpt", "checkpoint.writer")
_SHARED = "makes several ranks compute one sequence, but each rank of a job has its own sequences"
_OWN_LOOPS = {
    "tensor_parallel.autotp_size": _SHARED,
    "tensor_parallel.tp.tp_size": _SHARED,
    "tensor_parallel.tensor_parallel.tp_size": _SHARED,
    "sequence_parallel_size": _SHARED,
    "autotuning.enabled": "only tries settings and exits, but a job must train",
    "compile.deepcompile": "needs a call of engine.compile(), which a job does not make",
    "data_efficiency.enabled": "works in DeepSpeed's data loader, but a job reads its data itself",
}
"""Feature of DeepSpeed that needs code in the training loop, which zerotools does not have ->
the reason. The values 0, 1 and false switch it off.
"""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedSpec:
    """`[deepspeed]`: DeepSpeed's own configuration, for `engine = "deepspeed"`."""

    config: str | Mapping[str, Any] | None = key(
        'DeepSpeed\'s JSON: its path, or a table here. `zerotools submit` replaces each `"auto"` '
        "in the JSON by a value, compares the JSON with the job, and queues both together.",
        default=None,
        path=True,
        accelerate="deepspeed_config.deepspeed_config_file",
    )

    @property
    def tree(self) -> Mapping[str, Any]:
        """The DeepSpeed configuration; empty if the job has none, or if its file was not read
        yet.
        """
        return self.config if isinstance(self.config, Mapping) else {}


def config_value(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of the dotted `key` in a DeepSpeed configuration, or `default` if it is
    absent.
    """
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return default if found is None else found


def stage_of(config: Mapping[str, Any]) -> int:
    """Return the ZeRO stage in a DeepSpeed configuration.

    `"zero_optimization": true` is an old spelling of stage 1.
    """
    if config.get("zero_optimization") is True:
        return 1
    return int(config_value(config, "zero_optimization.stage", 0))


def precision_of(config: Mapping[str, Any]) -> str:
    """Return the precision in a DeepSpeed configuration: `fp16`, `bf16` or `fp32`."""
    if config_value(config, "fp16.enabled") is True:
        return "fp16"
    return (
        "bf16"
        if config_value(config, "bf16.enabled", config_value(config, "bfloat16.enabled")) is True
        else "fp32"
    )


def device_of(config: Mapping[str, Any], what: str) -> str:
    """Return the device to which DeepSpeed offloads `what` (`optimizer` or `param`): none, cpu
    or nvme.
    """
    section = config_value(config, f"zero_optimization.offload_{what}", {})
    device = config_value(section, "device", "none") if isinstance(section, Mapping) else "none"
    old = ("cpu_offload",) if what == "optimizer" else ("cpu_offload_param", "cpu_offload_params")
    if device == "none" and any(
        config_value(config, f"zero_optimization.{name}") is True for name in old
    ):
        return "cpu"
    return str(device).lower()


def on_nvme(config: Mapping[str, Any]) -> bool:
    """Return whether DeepSpeed offloads state to NVMe.

    Training with such state cannot be resumed.
    """
    return "nvme" in (device_of(config, "optimizer"), device_of(config, "param"))


def optimizer_of(config: Mapping[str, Any]) -> str:
    """Return the name of the optimizer in a DeepSpeed configuration, as the job file spells it.

    If the job file does not have this optimizer, return DeepSpeed's name in lower case. Return an
    empty string if the configuration has no optimizer.
    """
    name = str(config_value(config, "optimizer.type", "")).lower()
    return "adamw" if name in ADAMS else name


def unresolved_auto(tree: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield the dotted name of each key that still has the value `"auto"`, except the keys for
    which DeepSpeed itself accepts `"auto"`.
    """
    for name, value in tree.items():
        if value == "auto" and not f"{where}{name}".startswith(_OWN_AUTOS):
            yield f"{where}{name}"
        elif isinstance(value, Mapping):
            yield from unresolved_auto(value, f"{where}{name}.")


def check_config(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each setting in a DeepSpeed configuration that jobs do not support.

    Every `"auto"` must have been replaced before.
    """
    yield from _check_writers(config)
    for name, why in _OWN_LOOPS.items():
        value = config_value(config, name)
        if value is True or value not in (None, 0, 1):
            yield f"deepspeed.config {name} = {format_value(value)}: {why}; remove it"
    yield from _check_nvme(config)


def _check_nvme(config: Mapping[str, Any]) -> Iterator[str]:
    below = {
        "optimizer": "and at lower stages keeps the optimizer in host memory",
        "param": "and at lower stages does not move the weights",
    }
    for what, instead in below.items():
        section = f"deepspeed.config zero_optimization.offload_{what}"
        if device_of(config, what) != "nvme":
            continue
        if stage_of(config) < 3:
            yield (
                f'{section}.device = "nvme": DeepSpeed supports it only at stage 3, {instead}; set '
                'stage 3, or use "cpu"'
            )
        path = config_value(config, f"zero_optimization.offload_{what}.nvme_path")
        if not isinstance(path, str) or not path.startswith("/"):
            yield (
                f'{section}.device = "nvme": needs nvme_path in the same section, the absolute '
                "path of a directory on the disk"
            )


def _check_writers(config: Mapping[str, Any]) -> Iterator[str]:
    for name in _OWN_WRITERS:
        section = config_value(config, name)
        if section and config_value(config, f"{name}.enabled", True) is not False:
            yield (
                f"deepspeed.config {name}: writes checkpoints in the background, after "
                "zerotools has marked them as complete; remove it"
            )
    if config_value(config, "checkpoint.load_universal") is True:
        yield (
            "deepspeed.config checkpoint.load_universal = true: a job resumes from ZeRO "
            "checkpoints, not from universal ones; remove it, and if the world size changes, run "
            "zerotools reshard first"
        )
