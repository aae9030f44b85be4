"""Writes a rank's tensors into a checkpoint with DCP, directly or from a copy in host memory."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.allocate_tensors import LockFailed, PinnedArena
from zerotoolsd.trainer.checkpoints.save_checkpoint import SaveFailed
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import Diverged
from zerotoolsd.trainer.rank.rank_settings import Rank

FULL_BYTES = 1 << 20
"""If a write fails and the disk has fewer free bytes than this, the disk counts as full."""


def write_tensors(tree: TensorTree, directory: Path, group: WorldGroup) -> None:
    """Write `tree`, this rank's tensors, into `directory`, and flush the files to the disk.

    All ranks call it together.

    Raises:
        SaveFailed: a rank could not write.
        Diverged: a value on any rank is not finite. No file is written in this case.
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
        raise SaveFailed(explain_write_error(_causes(error), output, free)) from error


def explain_write_error(causes: str, output: Path, free_bytes: int) -> str:
    """Return `causes`, the reasons why a write below `output` failed.

    If the disk is full, the result begins with a sentence that says so, because torch's writer does
    not report it.
    """
    if free_bytes >= FULL_BYTES:
        return causes
    return (
        f"the disk of {output} is full: free some space there, or keep fewer checkpoints with "
        f"checkpoint.keep_last ({causes})"
    )


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {pair[0]}" for rank, pair in sorted(error.failures.items()))


TensorTree = dict[str, dict[str, torch.Tensor]]


def tensors_to_write(tree: TensorTree, rank: Rank) -> TensorTree:
    """Return the tensors of `tree` that this rank writes.

    If several ranks hold the same shard, one of them writes it. All ranks choose the same writer,
    and the choice spreads the bytes over the ranks. torch's DCP would choose only after all ranks
    have offered their tensors. Choosing earlier lets a rank copy only the tensors that it writes.
    """
    loads: dict[int, list[int]] = {}
    return {
        top: {name: tensor for name, tensor in branch.items() if _is_writer(tensor, rank, loads)}
        for top, branch in tree.items()
    }


def _is_writer(tensor: torch.Tensor, rank: Rank, loads: dict[int, list[int]]) -> bool:
    replica, replicas = _replica_of(tensor, rank)
    if replicas == 1:
        return True
    load = loads.setdefault(replicas, [0] * replicas)
    writer = load.index(min(load))
    load[writer] += tensor.numel() * tensor.itemsize
    return replica == writer


def _replica_of(tensor: torch.Tensor, rank: Rank) -> tuple[int, int]:
    """Return which replica of `tensor` this rank has, counted from 0, and how many replicas
    exist.
    """
    if not isinstance(tensor, DTensor):
        return rank.index, rank.world_size
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    replica, replicas = 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            replica = replica * mesh.size(dimension) + coordinate[dimension]
            replicas *= mesh.size(dimension)
    return replica, replicas


def first_not_finite(tree: TensorTree) -> str | None:
    """Return the name of a tensor in `tree` that contains an infinity or a NaN; None if all are
    finite.

    `tree` has this rank's tensors. Buffers are not checked. Each value is read once, on its device.
    """
    parts = {
        f"{top}.{name}": tensor.to_local()
        for top, branch in tree.items()
        for name, tensor in branch.items()
        if isinstance(tensor, DTensor) and tensor.is_floating_point()
    }
    for name, part in parts.items():
        # The extremes are NaN where any value is; a sum of large values may overflow by itself.
        if part.numel() and not bool(torch.stack(torch.aminmax(part)).isfinite().all()):
            return name
    return None


@dataclass
class HostCopy:
    """Copies a rank's tensors to host memory, from which they are written while training
    continues.

    All saves of a run use the same buffers. So host memory holds at most one copy, and its pages
    are locked once. Each tensor has its own buffer, because DCP would copy a view of a larger
    storage again. The result of `copy` is valid until the next call of `copy`.
    """

    arena: PinnedArena = field(default_factory=PinnedArena)
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def copy(self, tree: TensorTree) -> TensorTree:
        """Copy the tensors of `tree` to host memory, and wait until the copy is complete.

        Returns the copies, with the same names, placements and values.
        """
        copied = {
            top: {name: self._copy(f"{top}.{name}", tensor) for name, tensor in branch.items()}
            for top, branch in tree.items()
        }
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return copied

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            buffer = self._buffers[name] = self._buffer_for(local)
        buffer.copy_(local.detach(), non_blocking=True)
        if not isinstance(tensor, DTensor):
            return buffer
        # from_local would move the buffer to the mesh's device.
        return DTensor(buffer, tensor._spec, requires_grad=False)

    def _buffer_for(self, local: torch.Tensor) -> torch.Tensor:
        if local.is_cuda:
            # If no more pages may be locked, the copy is slower, but correct.
            with suppress(LockFailed):
                return self.arena.empty(local.shape, local.dtype)
        return torch.empty(local.shape, dtype=local.dtype, device="cpu")
