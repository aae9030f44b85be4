"""Checks disk space for `offload.optimizer = "disk"`, before anything is built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory import MemoryLayout
from zerotools.ops.estimate.state import optimizer_state_of_all_ranks
from zerotoolsd.trainer.model.memory_estimate import parameters_of
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.group import WorldGroup

GIB = 1 << 30


def check_disk_space(
    meta_model: MetaModel,
    layout: MemoryLayout,
    path: Path,
    group: WorldGroup,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> None:
    """Check on rank 0 for all ranks, which are on one machine.

    Raises:
        BadRequest: `path` is not a directory, or has less space than the state needs; on every
            rank.
    """

    def look() -> None:
        need = optimizer_state_of_all_ranks(parameters_of(meta_model), layout)
        try:
            path.mkdir(parents=True, exist_ok=True)
            free = free_bytes(path)
        except OSError as error:
            raise BadRequest(f"offload.path: {path} cannot be used: {error.strerror}") from None
        if free < need:
            raise BadRequest(
                f"offload.path: the optimizer's state takes {need / GIB:.2f} GiB and {path} has "
                f"{free / GIB:.2f} GiB free: free some, or name a directory on another disk"
            )

    group.decided_by_rank_zero(look)
