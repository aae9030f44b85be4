"""`[offload]`: what does not stay on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

STATE_PLACES = ("none", "cpu", "disk")


@dataclass(frozen=True, kw_only=True)
class OffloadSpec:
    """`[offload]`: what does not stay on the GPU, at the price of time."""

    optimizer: str = key(
        "Where the fp32 masters and the optimizer's state are, and are updated: `none` with the "
        "weights, `cpu` in the host's memory, `disk` in files that are mapped into it.",
        default="none",
        allowed=STATE_PLACES,
    )
    params: str = key(
        "`cpu`: the parameters are in the host's memory too, and come to the GPU block by block. "
        "Stage 3 only; the optimizer's state is then on the host, or on disk.",
        default="none",
        allowed=("none", "cpu"),
    )
    path: str | None = key(
        'A directory on the disk that `optimizer = "disk"` uses, 12 bytes per parameter; best on '
        "the machine's own NVMe.",
        default=None,
    )
    pin_memory: bool = key(
        "Pin what travels between host and GPU: faster, and memory that the machine cannot swap.",
        default=True,
    )
