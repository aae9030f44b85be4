"""The names of the parts of a checkpoint in `Target.dropped`, the list of the parts that an output
cannot hold."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.training_state import TrainingState

WEIGHTS = ("param", "buffer")
LOOSE = "state"
"""The role of tensors in the client state, which are neither weights nor optimizer state."""


def extra_roles(source: Checkpoint, training: TrainingState) -> list[str]:
    """Return all roles of tensors that are not weights: 16-bit copies, and the tensors and numbers
    of the optimizer.
    """
    keys = (*source.tensors, *training.scalars)
    return list(dict.fromkeys(key.role for key in keys if key.role not in (*WEIGHTS, LOOSE)))


def optimizer_roles(source: Checkpoint) -> list[str]:
    """Return the kinds of optimizer tensors in the checkpoint, such as `exp_avg`."""
    roles = dict.fromkeys(key.role for key in source.tensors)
    return [role for role in roles if role not in (*WEIGHTS, "param16", LOOSE)]


def state_words(source: Checkpoint, training: TrainingState) -> list[str]:
    """Return the name of each part of the training state that has a value, such as
    `lr_scheduler`."""
    counters = (training.steps, training.skipped, training.samples)
    there = {
        "param_groups": training.groups,
        "lr_scheduler": training.lr_scheduler is not None,
        "loss_scale": training.loss_scale,
        "steps": any(counter is not None for counter in counters),
        "ds_config": training.ds_config is not None,
        "client": training.client or any(key.role == LOOSE for key in source.tensors),
        "frozen": training.frozen,
    }
    return [word for word, value in there.items() if value]
