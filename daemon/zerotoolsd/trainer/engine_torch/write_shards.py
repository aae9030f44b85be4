"""A rank's tensors into a DCP directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from zerotoolsd.trainer.checkpoints.finite import first_not_finite
from zerotoolsd.trainer.checkpoints.replicas import TensorTree
from zerotoolsd.trainer.checkpoints.saving import SaveFailed
from zerotoolsd.trainer.rank.failures import Diverged
from zerotoolsd.trainer.rank.group import WorldGroup

FULL_BYTES = 1 << 20
"""After a failed write, a disk with less free space than this counts as full."""


def write_tensors(tree: TensorTree, directory: Path, group: WorldGroup) -> None:
    """Write `tree`, this rank's part of the state, fsynced; all ranks call it together.

    Raises:
        SaveFailed: a rank could not write.
        Diverged: a value is not finite, on any rank: no file is written.
    """
    bad = [name for name in group.gathered(first_not_finite(tree)) if name is not None]
    if bad:
        raise Diverged(
            f"{bad[0]} has values that are not finite, and is not saved: training has diverged; "
            "lower train.learning_rate or lengthen train.warmup_steps"
        )
    writer = dcp.FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)
    try:
        dcp.save(tree, storage_writer=writer, process_group=group.control)
    except CheckpointException as error:  # a BaseException: it must not pass as an interruption
        output = directory.parents[1]  # beyond the staging directory
        free = shutil.disk_usage(output).free  # the written files still exist
        raise SaveFailed(why_not(_causes(error), output, free)) from error


def why_not(causes: str, output: Path, free_bytes: int) -> str:
    """Return `causes`, after a sentence on a full disk, which torch's writer does not report."""
    if free_bytes >= FULL_BYTES:
        return causes
    return (
        f"the disk of {output} is full: free some space there, or keep fewer checkpoints with "
        f"checkpoint.keep_last ({causes})"
    )


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {pair[0]}" for rank, pair in sorted(error.failures.items()))
