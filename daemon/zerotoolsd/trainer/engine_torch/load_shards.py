"""Loads tensors from a DCP directory, at any number of ranks, after a check of its contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.distcp.metadata import Metadata
from zerotoolsd.trainer.engine_torch.checked_reader import CheckedReader
from zerotoolsd.trainer.engine_torch.state import LiveState
from zerotoolsd.trainer.rank.failures import BadCheckpoint
from zerotoolsd.trainer.rank.group import WorldGroup


def load_shards(live: LiveState, directory: Path, group: WorldGroup) -> None:
    """Fill the live state from `directory`, in place.

    Raises:
        BadRequest: the checkpoint is of another model; the first tensor that differs is named.
        BadCheckpoint: it cannot be read.
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
            yield f"{directory} has no tensor {name}: it is a checkpoint of another model"
        elif saved.shape != tuple(tensor.shape):
            yield (
                f"{directory}: {name} has shape {list(saved.shape)} and the job's model has "
                f"{list(tensor.shape)}: it is a checkpoint of another model"
            )
