"""The training state that safetensors hold: only the type of the weights."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.training import TrainingState
from zerotools.formats.torch_optimizers import weights_dtype


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the type that most of the weights are in."""
    return TrainingState(precision=weights_dtype(checkpoint))
