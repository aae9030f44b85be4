"""A Megatron checkpoint of any kind, as a Checkpoint that is shown and never written."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.formats.megatron.rank_files import read_ranks
from zerotools.formats.megatron.torch_dist import read_directory
from zerotools.formats.signatures import MEGATRON_FILES, MEGATRON_RANK, names_in


def read(path: Path) -> Checkpoint:
    """Iteration, tensors and sizes of the checkpoint in the directory `path`; `Origin.refusal` says
    why nothing can be made of it.

    Raises:
        BadRequest: there is no such directory.
        BadFile: its files are damaged.
    """
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory")
    names = names_in(path)
    if any(map(MEGATRON_RANK.fullmatch, names)) or names & {*MEGATRON_FILES}:
        return read_ranks(path)
    return read_directory(path)


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Nothing: no format is made of what is only recognised."""
    return TrainingState()
