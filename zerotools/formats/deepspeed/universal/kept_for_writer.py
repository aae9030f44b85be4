"""Values that the reader of universal checkpoints stores in `Checkpoint.native`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.universal.optimizer_state import UniversalState


@dataclass(frozen=True, slots=True)
class UniversalNative:
    """Values that the reader of universal checkpoints stores for the writer.

    Attributes:
        model: the content of one model file.
        saved: the content of `optimizer_state.pt`.
        numbers: the values of the optimizer state that are stored as plain numbers.
    """

    model: ModelStates
    saved: UniversalState
    numbers: Mapping[Key, int | float]


def native_of(checkpoint: Checkpoint) -> UniversalNative:
    """Return the values that the reader stored in a checkpoint that `universal.read` returned."""
    native = checkpoint.native
    if not isinstance(native, UniversalNative):
        raise TypeError(f"{checkpoint.origin.path} is not a universal checkpoint")
    return native
