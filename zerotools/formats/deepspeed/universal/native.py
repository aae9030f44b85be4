"""The values of a universal checkpoint that only the writer of this format needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.universal.optimizer_state import UniversalState


@dataclass(frozen=True, slots=True)
class UniversalNative:
    """One model file, the contents of `optimizer_state.pt`, and the numbers of optimizer state that
    are not tensors."""

    model: ModelStates
    saved: UniversalState
    numbers: Mapping[Key, int | float]


def native_of(checkpoint: Checkpoint) -> UniversalNative:
    """Return the native values of a checkpoint that `universal.read` returned."""
    native = checkpoint.native
    if not isinstance(native, UniversalNative):
        raise TypeError(f"{checkpoint.origin.path} is not a universal checkpoint")
    return native
