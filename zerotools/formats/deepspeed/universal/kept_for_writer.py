"""Values that the reader of universal checkpoints stores in `Checkpoint.native`, and the pairs of a
master and its weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
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


def check_weights(source: Checkpoint) -> None:
    """Compare the first elements of every master with the weight that was cast from it.

    Raises:
        Unsupported: a master and its weight disagree, so the files are from two saves.
        BadFile: a file is truncated.
    """
    from zerotools.formats.deepspeed.writing.source_checks import compare_weights

    compare_weights(source, weight_pairs(source))


def weight_pairs(source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, master, weight) for each weight that has a master. A checkpoint of stage 3 has
    placeholders instead of weights, so it has no pairs.
    """
    model = native_of(source).model
    trained = {name for group in model.groups or () for name in group}
    for name, stored in (model.module or {}).items():
        master = source.tensors.get(Key(name, "param"))
        if name in trained and master is not None and master.shape == stored.shape:
            yield name, master, model.file.tensor(stored)
