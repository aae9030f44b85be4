"""Room on disk for `offload.optimizer = "disk"`, before anything is built."""

from __future__ import annotations

import shutil
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.train import TrainSpec
from zerotoolsd.trainer.memory.layout import MemoryLayout
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.group import WorldGroup

FLOAT = 4
GIB = 1 << 30


def check_disk_space(
    blueprint: MetaModel, layout: MemoryLayout, train: TrainSpec, path: Path, group: WorldGroup
) -> None:
    """Rank 0 looks, for all ranks, which are on one machine.

    Raises:
        BadRequest: `path` is not a directory, or has less room than the state takes; on every rank.
    """

    def look() -> None:
        need = optimizer_state_bytes(blueprint, layout, train)
        try:
            path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise BadRequest(f"offload.path: {path} cannot be used: {error.strerror}") from None
        if free < need:
            raise BadRequest(
                f"offload.path: the optimizer's state takes {need / GIB:.2f} GiB and {path} has "
                f"{free / GIB:.2f} GiB free: free some, or name a directory on another disk"
            )

    group.decided_by_rank_zero(look)


def optimizer_state_bytes(blueprint: MetaModel, layout: MemoryLayout, train: TrainSpec) -> int:
    """Bytes of masters and moments of all ranks together."""
    copies = 1
    if layout.stage == 0:
        copies = layout.world_size
    elif layout.shard_size is not None:
        copies = layout.world_size // layout.shard_size
    total = 0
    for parameter in blueprint.model.parameters():
        total += parameter.numel() if layout.has_masters else 0
        if parameter.requires_grad:
            total += _moments(parameter.shape, train)
    return FLOAT * total * copies


def _moments(shape: tuple[int, ...], train: TrainSpec) -> int:
    count = 1
    for size in shape:
        count *= size
    if train.optimizer == "adamw":
        return 2 * count
    if train.optimizer == "sgd":
        return count if train.momentum else 0
    return count if len(shape) < 2 else count // shape[-1] + count // shape[-2]
