"""Whether the masters of a universal checkpoint are those of the weights in its model file."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.formats.deepspeed.universal.native import native_of
from zerotools.formats.deepspeed.writing.checks import compare_weights


def check_weights(source: Checkpoint) -> None:
    """Compare the beginning of every master with the weight that was cast from it.

    Raises:
        Unsupported: they disagree: the files are of two saves.
        BadFile: a file is truncated.
    """
    compare_weights(source, weight_pairs(source))


def weight_pairs(source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, master and weight. Stage 3 has placeholders instead of weights."""
    model = native_of(source).model
    trained = {name for group in model.groups or () for name in group}
    for name, stored in (model.module or {}).items():
        master = source.tensors.get(Key(name, "param"))
        if name in trained and master is not None and master.shape == stored.shape:
            yield name, master, model.file.tensor(stored)
