"""Read the training state of an Orbax checkpoint: optax's step counters, and the weights that optax
updates.
"""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState, trained_precision
from zerotools.formats.orbax.tree_names import TreeNames
from zerotools.io.numeric.scalar_tensors import read_scalar, scalars_below


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the training state of `checkpoint`.

    Optax stores no options, because a schedule and its numbers are part of the program's code. So
    the single param group has no options, and a writer that needs the learning rate asks the user.

    Raises:
        BadFile: the counter of the run cannot be read.
    """
    names = checkpoint.native
    assert isinstance(names, TreeNames)
    numbers: dict[Key, Tensor | Scalar] = {}
    for name, path in names.counts.items():
        count = None if path is None else checkpoint.tensors.get(names.keys[path])
        if count is not None:
            numbers[Key(name, "step")] = count
    step = None if names.step is None else checkpoint.tensors.get(names.keys[names.step])
    named = checkpoint.origin.step  # from the name of the directory
    return TrainingState(
        groups=(ParamGroup(tuple(names.counts), {}),) if names.counts else (),
        scalars=scalars_below(checkpoint.root, numbers),
        precision=trained_precision(checkpoint),
        steps=named if step is None else int(read_scalar(checkpoint.root, step).value),
        is_ordered=False,
    )
