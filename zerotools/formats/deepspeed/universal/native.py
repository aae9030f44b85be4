"""What is kept of a universal checkpoint for its own writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.universal.optimizer_state import UniversalState


@dataclass(frozen=True, slots=True)
class UniversalNative:
    """One model file, what `optimizer_state.pt` says, and the numbers of optimizer state that are
    not tensors."""

    model: ModelStates
    saved: UniversalState
    numbers: Mapping[Key, int | float]


def native_of(checkpoint: Checkpoint) -> UniversalNative:
    """That of a checkpoint which `universal.read` gave."""
    native = checkpoint.native
    if not isinstance(native, UniversalNative):
        raise TypeError(f"{checkpoint.origin.path} is not a universal checkpoint")
    return native
