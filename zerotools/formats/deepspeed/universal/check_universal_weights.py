"""Pairs of a master and its weight in a universal checkpoint, and checks of their values."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.formats.deepspeed.universal.kept_for_writer import native_of


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
