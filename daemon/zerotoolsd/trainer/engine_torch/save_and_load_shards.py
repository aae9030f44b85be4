"""Writes a rank's tensors into a checkpoint with DCP, directly or from a copy in host memory; and
loads them, also from a checkpoint of another program.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.tensor import DTensor

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata
from zerotools.ops.resume_from_other_program.check_job_fits import weights_of
from zerotoolsd.trainer.allocate_tensors import LockFailed, PinnedArena
from zerotoolsd.trainer.checkpoints.save_checkpoint import SaveFailed
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState
from zerotoolsd.trainer.model.fill_shards import (
    BoxReader,
    fill_shard,
    load_weights,
    persistent_buffers,
)
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint, Diverged
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


def load_shards(live: LiveState, directory: Path, group: WorldGroup) -> None:
    """Fill the live state in place from the DCP directory `directory`, which any number of ranks
    saved.

    Raises:
        BadRequest: the checkpoint belongs to another model. The message names the first tensor that
            differs.
        BadCheckpoint: the directory cannot be read.
    """
    try:
        reader = CheckedReader(directory)
    except (BadFile, Unsupported, OSError) as error:
        raise BadCheckpoint(str(error)) from error
    for sentence in _differences(live, reader.checked, directory):
        raise BadRequest(sentence)
    try:
        dcp.load(live.tree(), storage_reader=reader, process_group=group.control)
    except CheckpointException as error:  # a BaseException: it must not pass as an interruption
        first = next(iter(error.failures.values()))[0]
        raise BadCheckpoint(f"{directory} cannot be loaded: {first}") from first
    live.copy_to_model()


def _differences(live: LiveState, stored: Metadata, directory: Path) -> Iterator[str]:
    for name, tensor in live.flat().items():
        saved = stored.tensors.get(name)
        if saved is None:
            yield (
                f"{directory} has no tensor {name}: it is a checkpoint of another model; name a "
                "checkpoint of the job's model"
            )
        elif saved.shape != tuple(tensor.shape):
            yield (
                f"{directory}: {name} has shape {list(saved.shape)}, but the job's model has "
                f"{list(tensor.shape)}: it is a checkpoint of another model; name a checkpoint of "
                "the job's model"
            )


METADATA = ".metadata"


class CheckedReader(dcp.FileSystemReader):  # type: ignore[misc] # torch's types are not followed
    """torch's reader of a DCP directory, which does not unpickle the file `.metadata`.

    torch reads that file with `pickle.load`, which runs code from the file. So a user who can write
    to the directory could run code in the job. This class reads the file with the restricted reader
    of `zerotools.io.distcp`, and fills torch's classes with the checked values. (torch loads the
    tensors with `weights_only=True`.)
    """

    def __init__(self, directory: Path) -> None:
        """Read the file `.metadata` in `directory`, and check it.

        Raises:
            BadFile: the file is damaged, or it is not a file of DCP.
            Unsupported: the location of a tensor cannot be determined.
        """
        super().__init__(directory)
        self.checked = read_metadata(directory / METADATA)

    def read_metadata(self, *args: Any, **kwargs: Any) -> of_torch.Metadata:
        """Return the checked metadata of the tensors, as an object of torch's class."""
        found = as_torch_metadata(self.checked)
        found.storage_meta = of_torch.StorageMeta(load_id=self.load_id)
        return found


def as_torch_metadata(metadata: Metadata) -> of_torch.Metadata:
    """Convert `metadata` to torch's classes."""
    has_version = "version" in of_torch.Metadata.__dataclass_fields__  # since torch 2.9
    return of_torch.Metadata(
        state_dict_metadata={key: _tensor(saved) for key, saved in metadata.tensors.items()},
        planner_data=metadata.paths,
        storage_data={
            of_torch.MetadataIndex(key, box.start, number): _storage_info(item)
            for key, saved in metadata.tensors.items()
            for number, (box, item) in enumerate(saved.parts)
        },
        **({"version": metadata.version} if has_version else {}),
    )


def _tensor(saved: SavedTensor) -> of_torch.TensorStorageMetadata:
    return of_torch.TensorStorageMetadata(
        properties=of_torch.TensorProperties(dtype=getattr(torch, saved.dtype.name)),
        size=torch.Size(saved.shape),
        chunks=[_chunk(box) for box, _ in saved.parts],
    )


def _chunk(box: Box) -> of_torch.ChunkStorageMetadata:
    return of_torch.ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape))


def _storage_info(item: Item) -> Any:
    return _StorageInfo(item.file, item.offset, item.length)


def load_foreign(live: LiveState, start: ForeignStart) -> None:
    """Fill the live state in place from the checkpoint of another program.

    Each rank reads only its own parts. Values are cast to the dtypes of the live state.

    Raises:
        BadFile: a tensor is incomplete, or its file is damaged.
    """
    weights, tensors = weights_of(start.run), start.run.checkpoint.tensors
    with BoxReader(start.run.checkpoint) as reader, torch.no_grad():
        targets = {**live.parameters, **persistent_buffers(live.model)}
        if start.pretrained is not None:
            load_weights(targets, start.record.aliases, start.pretrained)
        else:
            for name, tensor in targets.items():
                fill_shard(tensor, weights[name], tensors[weights[name]], reader)
        for flat, tensor in live.optimizer.state().items():
            name, _, role = flat.rpartition(".")
            if role == "step":
                tensor.fill_(float(start.updates_of(name)))
            elif name not in start.state.fresh:
                key = Key(name, role)
                fill_shard(tensor, key, tensors[key], reader)
    live.copy_to_model()
