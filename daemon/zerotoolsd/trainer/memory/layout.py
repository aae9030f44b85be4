"""What a run keeps of each parameter, and cut how: read from the job file, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops import estimate

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class MemoryLayout:
    """How parameters, gradients and optimizer state are laid out over `world_size` ranks.

    `shard_size` ranks share one copy of the model at stages 2 and 3. `offload` is where the
    optimizer's state is: "none" (on the device), "cpu" or "disk". With `params_on_host`, the
    parameters are on the host too, and come to the device one block at a time.
    """

    world_size: int
    stage: int = 3
    precision: str = "fp32"
    offload: str = "none"
    params_on_host: bool = False
    pin_memory: bool = True
    shard_size: int | None = None
    compiled: bool = False

    @property
    def sharing(self) -> int:
        """Ranks that share one copy of the model at stages 2 and 3."""
        return self.shard_size or self.world_size

    @property
    def has_masters(self) -> bool:
        """Whether fp32 masters are kept apart from the weights that the model computes with."""
        return estimate.has_masters(
            self.stage,
            half=self.half is not None,
            offloads=self.offload != "none",
            params_on_host=self.params_on_host,
        )

    @property
    def half(self) -> torch.dtype | None:
        """The 16-bit type of the forward and backward pass, if it has one."""
        return HALVES.get(self.precision)

    @property
    def weights_dtype(self) -> torch.dtype:
        """The type of the weights that stay in memory between steps."""
        return (self.half or torch.float32) if self.has_masters else torch.float32


def layout_of(spec: JobSpec) -> MemoryLayout:
    """The layout that the job file asks for."""
    return MemoryLayout(
        world_size=spec.world_size,
        stage=spec.zero.stage,
        precision=spec.train.precision,
        offload=_place_of_state(spec),
        params_on_host=spec.offload.params == "cpu",
        pin_memory=spec.offload.pin_memory,
        shard_size=spec.zero.shard_size,
        compiled=spec.train.compile,
    )


def _place_of_state(spec: JobSpec) -> str:
    # Parameters on the host are updated there, by what is there.
    if spec.offload.params == "cpu" and spec.offload.optimizer == "none":
        return "cpu"
    return spec.offload.optimizer
