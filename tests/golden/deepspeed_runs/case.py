"""What a case is, and the DeepSpeed configuration that it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .optimizers import SECTIONS

Precision = Literal["fp32", "bf16", "fp16"]
Harness = Literal[
    "engine", "sequence", "mics", "trainer", "accelerate", "pipeline", "experts", "tensor", "autoep"
]


@dataclass(frozen=True)
class Save:
    """One `save_checkpoint` after `step` finished steps; tag None is DeepSpeed's own choice."""

    step: int
    tag: str | None = None
    latest: bool = True
    exclude_frozen: bool = False
    client_state: Literal["", "megatron", "lightning"] = ""
    export16: bool = False


@dataclass(frozen=True)
class Case:
    """One training run of a few steps.

    `overflow_steps` get an infinite gradient; `first_world_size` saves the same tag with that many
    ranks before, and leaves its files; `universal` converts the last tag and keeps only the result;
    `builds` marks what compiles an extension; `harness` says whose loop trains and saves.
    """

    name: str
    stage: int
    world_size: int
    about: str
    precision: Precision = "fp32"
    model: str = "plain"
    optimizer: str = "adamw"
    saves: tuple[Save, ...] = (Save(2),)
    overflow_steps: tuple[int, ...] = ()
    zero: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    first_world_size: int | None = None
    universal: bool = False
    builds: bool = False
    harness: Harness = "engine"

    @property
    def steps(self) -> int:
        return max(save.step for save in self.saves)


def with_zero(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that goes on with other ZeRO settings.

    Adding gradients up in fp32 would mean BF16_Optimizer at stage 1, and parameters are offloaded
    at stage 3 alone. A run on NVMe goes on without it, as it would not load its optimizer files.
    """
    zero = config.get("zero_optimization", {})
    if zero.get("offload_optimizer", {}).get("device") == "nvme":
        changes = {"offload_optimizer": {"device": "cpu"}, **changes}
    if not changes:
        return config
    zero = {**zero, **changes}
    if zero["stage"] != 3:
        zero.pop("offload_param", None)
    kept = {key: value for key, value in config.items() if key != "data_types"}
    return kept | {"zero_optimization": zero}


def deepspeed_config(case: Case) -> dict[str, Any]:
    """The JSON configuration of a case, as a user would write it."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1000000,
        "zero_allow_untested_optimizer": True,
    }
    if case.stage:
        config["zero_optimization"] = {"stage": case.stage, **case.zero}
        if case.zero.get("offload_optimizer") and not case.builds:
            config["zero_force_ds_cpu_optimizer"] = False
    if case.precision != "fp32":
        config[case.precision] = {"enabled": True}
    if case.precision == "fp16":
        config["fp16"] |= {"initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1}
    if case.optimizer in SECTIONS:
        config["optimizer"] = SECTIONS[case.optimizer]
    return config | dict(case.config)
