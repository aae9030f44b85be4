"""The optimizer of a run without ZeRO, which `read` leaves out because it has no names.

The state is joined to the weights under made-up names. Masters or shapes may prove the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.checkpoint_parts import optimizer_roles
from zerotools.core.errors import BadFile
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.formats.torch_optimizers import NAMED_BY_SHAPE, names_by_shape
from zerotools.ops.foreign.flat_state import divided
from zerotools.ops.foreign.matching_masters import (
    fitting_masters,
    sections_by_masters,
    weights_of_model,
)
from zerotools.ops.foreign.naming import NamedCheckpoint, renamed
from zerotools.ops.foreign.numbering import state_shapes

NAMED_BY_MASTERS = (
    "the optimizer numbers its parameters; their names are known from the masters, because each "
    "master is cast to only one weight"
)


def with_numbered_state(
    weights: Checkpoint, known: TrainingState, table: FormatTable = FORMATS
) -> tuple[Checkpoint, TrainingState] | None:
    """Return `weights` and the `known` state of their run, with the optimizer state that the format
    has by number; None: it has none.

    Raises:
        BadFile: the state is damaged.
        Unsupported: it is of several model-parallel ranks.
    """
    named = optimizer_roles(weights)
    found = None if named else format_of(weights, table).numbered_state(weights)
    if found is None:
        return None
    state, training = found
    if weights.root != state.root:
        raise BadFile(f"{weights.root} and {state.root} are not one directory")
    joined = replace(
        weights,
        tensors={**weights.tensors, **state.tensors},
        files={**weights.files, **state.files},
        stamps={**weights.stamps, **state.stamps},
    )
    return joined, replace(
        known,
        groups=training.groups,
        scalars=training.scalars,
        unnamed=training.unnamed,
        flat=training.flat,
        loss_scaler=training.loss_scaler or known.loss_scaler,
        frozen=frozenset(),
    )


@dataclass(frozen=True)
class ProvedNames:
    """`known_by` is a sentence on the proof of the names."""

    named: NamedCheckpoint
    known_by: str


def with_proved_names(checkpoint: Checkpoint, training: TrainingState) -> ProvedNames | None:
    """Return `checkpoint`, with its optimizer's parameters by number, with their names, if masters
    or shapes prove them all; else None.

    Raises:
        BadFile: a file ends before a master or a weight.
    """
    if training.flat:
        sections = sections_by_masters(checkpoint, training)
        if sections is None:
            return None
        checkpoint, training = divided(checkpoint, training, sections)
        members = [member for group in training.groups for member in group.params]
        names = dict(zip(members, (n for section in sections for n in section), strict=True))
        return ProvedNames(renamed(checkpoint, training, names), NAMED_BY_MASTERS)
    members = [member for group in training.groups for member in group.params]
    fitting = fitting_masters(checkpoint, training)
    alone = {member: names[0] for member, names in fitting.items() if len(names) == 1}
    if members and len({*alone.values()}) == len(members):
        return ProvedNames(renamed(checkpoint, training, alone), NAMED_BY_MASTERS)
    if any(not names for names in fitting.values()):
        return None
    names = names_by_shapes(checkpoint, training)
    return ProvedNames(renamed(checkpoint, training, names), NAMED_BY_SHAPE) if names else None


def names_by_shapes(checkpoint: Checkpoint, training: TrainingState) -> dict[str, str]:
    """Return the name of every member of the groups, where its state fits one weight alone; else
    none."""
    numbers = training.unnamed
    shapes = state_shapes(checkpoint, training)
    state = {number: shapes.get(member, {}) for member, number in numbers.items()}
    weights = {
        key.name: tensor.shape
        for key, tensor in weights_of_model(checkpoint, training).tensors.items()
        if tensor.dtype.is_float
    }
    named = names_by_shape([*state], state, weights)
    return {member: named[number] for member, number in numbers.items() if number in named}
