"""Loads the live state of a run: from a DCP directory, or from a checkpoint of another program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata
from zerotools.ops.resume_from_other_program.check_job_fits import weights_of
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.engine_torch.live_state import LiveState
from zerotoolsd.trainer.model.fill_shards import (
    BoxReader,
    fill_shard,
    load_weights,
    persistent_buffers,
)
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint


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
