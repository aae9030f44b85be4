"""`[offload]` of the job file: training state that is kept outside of GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

STATE_PLACES = ("none", "cpu", "disk")


@dataclass(frozen=True, kw_only=True)
class OffloadSpec:
    """`[offload]`: the training state that is moved out of GPU memory. Each step then takes more
    time.
    """

    optimizer: str = key(
        "The memory for the fp32 master weights and the optimizer state, which are updated "
        "there. `none`: the memory of the weights; `cpu`: host memory; `disk`: memory-mapped "
        "files.",
        default="none",
        allowed=STATE_PLACES,
        deepspeed="zero_optimization.offload_optimizer.device",
    )
    params: str = key(
        "`cpu`: the parameters are also kept in host memory, and are copied to the GPU block by "
        "block. Stage 3 only; the optimizer state is then in host memory or on disk.",
        default="none",
        allowed=("none", "cpu"),
        deepspeed="zero_optimization.offload_param.device",
        accelerate="fsdp_config.fsdp_offload_params",
    )
    path: str | None = key(
        'The directory for the files of `optimizer = "disk"`, 12 bytes per parameter; a local '
        "NVMe disk is best.",
        default=None,
        path=True,
        deepspeed="zero_optimization.offload_optimizer.nvme_path",
    )
    pin_memory: bool = key(
        "Pin the host memory that is copied to and from the GPU: faster, but it cannot be "
        "swapped out.",
        default=True,
        deepspeed="zero_optimization.offload_optimizer.pin_memory",
    )


def check_offload(offload: OffloadSpec) -> Iterator[str]:
    """Yield the problems in `[offload]` that do not depend on other tables."""
    if offload.optimizer == "disk" and offload.path is None:
        yield 'offload.optimizer = "disk": needs a directory for its files; set offload.path'
    if offload.optimizer != "disk" and offload.path is not None:
        yield (
            f"offload.path = {format_value(offload.path)}: cannot be combined with "
            "offload.optimizer = "
            f'"{offload.optimizer}"; leave it out, or set offload.optimizer = "disk"'
        )
    if not offload.pin_memory and (offload.optimizer, offload.params) == ("none", "none"):
        yield "offload.pin_memory = false: the job offloads no data; leave it out"
