"""Give parameter names to optimizer state that has only numbers.

torch numbers the parameters of an optimizer in the order of its param groups. The optimizer state
first gets names that are made from these numbers. Then fp32 masters or shapes prove the real names
(`with_proved_names`), or the user gives them in an order (`with_names`). `parameter_order_option`
reads the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import optimizer_roles
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.formats.torch_optimizers import (
    NAMED_BY_SHAPE,
    STATE_ROLE,
    WEIGHT_ROLES,
    Shape,
    names_by_shape,
    refuse_several_classes,
)
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.resume_from_other_program.match_masters import (
    check_masters,
    fitting_masters,
    sections_by_masters,
    split_flat_tensors,
    weights_of_model,
)
from zerotools.runs.optimizer_names_record import NamedOrder

if TYPE_CHECKING:
    from zerotools.ops.resume_from_other_program.parameter_order_option import AskedOrder

_WRAPPERS = ("module.", "_orig_mod.", "_forward_module.")


@dataclass(frozen=True)
class NamedCheckpoint:
    """A checkpoint and its training state, with names in place of the numbers of parameters.

    `groups` has the parameter names of each param group, in the order of the numbers.
    """

    checkpoint: Checkpoint
    training: TrainingState
    groups: tuple[tuple[str, ...], ...]


def record_of(order: AskedOrder, training: TrainingState) -> NamedOrder:
    """Return a record of the parameter names in `training`, and of the source of these names."""
    return NamedOrder(order.known_by, [group.params for group in training.groups])


def with_names(
    checkpoint: Checkpoint, training: TrainingState, order: AskedOrder
) -> NamedCheckpoint:
    """Return `checkpoint` with the names in `order` for the numbered parameters of its optimizer.

    Raises:
        BadRequest: `order` has other names than the weights, does not fit the shapes of the state,
            fits them in several ways, or gives the name of a weight to a master with other values.
    """
    from zerotools.ops.resume_from_other_program.match_parameter_order import (
        NameOrder,
        names_of_numbers,
        state_shapes,
    )

    path = checkpoint.origin.path
    weights = {
        key.name: tensor.shape
        for key, tensor in checkpoint.tensors.items()
        if key.role in WEIGHT_ROLES and key.name not in training.unnamed
    }
    called = _called(order, weights, checkpoint.aliases, path)
    if training.flattened_parameters:
        checkpoint, training = split_flat_tensors(checkpoint, training, _sections(order, called))
    parameters = {name: weights[name] for name in called.values()}
    if order.shapes is not None:
        _check_shapes(order.shapes, parameters, called, path)
    state = state_shapes(checkpoint, training)
    is_model = order.shapes is not None
    known = NameOrder(
        parameters,
        None if order.decayed is None else {called[name] for name in order.decayed},
        () if is_model else _sections(order, called),
        can_be_concatenated=not is_model,
    )
    names = names_of_numbers(training.groups, state, known, str(path))
    found = renamed_parameters(checkpoint, training, names)
    check_masters(checkpoint, training, found.groups)
    return found


def _called(
    order: AskedOrder, weights: Mapping[str, Shape], aliases: Mapping[str, str], path: object
) -> dict[str, str]:
    """Return a dict from the names in the order to the names in the checkpoint. The checkpoint's
    names may have a wrapper's prefix, and it stores a tied weight under only one of its names."""
    known = {*weights, *aliases}
    names = order.names
    prefixes = ["", *_WRAPPERS]
    prefixes += [name.removesuffix(names[0]) for name in known if name.endswith(f".{names[0]}")]
    for prefix in prefixes:
        if all(prefix + name in known for name in names):
            found = {name: aliases.get(prefix + name, prefix + name) for name in names}
            if weights.keys() >= set(found.values()):
                return found
    from zerotools.ops.resume_from_other_program.parameter_order_option import ADVICE

    strange = next((name for name in names if name not in known), names[0])
    raise BadRequest(
        f"--order: {order.known_by} has {strange}, which is not a weight of {path}; {ADVICE}"
        if order.shapes is not None
        else f"--order has {strange}, which is not a parameter of {path}; correct the name"
    )


def _sections(order: AskedOrder, called: Mapping[str, str]) -> list[list[str]]:
    """Return the names in each param group. A tied weight appears once."""
    left = dict.fromkeys(called.values())
    found = []
    for section in order.sections:
        names = dict.fromkeys(called[name] for name in section)
        found.append([name for name in names if left.pop(name, name) is None])
    return found


def _check_shapes(
    shapes: Mapping[str, Shape],
    parameters: Mapping[str, Shape],
    called: Mapping[str, str],
    path: object,
) -> None:
    from zerotools.ops.resume_from_other_program.parameter_order_option import ADVICE

    for name, shape in shapes.items():
        if parameters[called[name]] != shape:
            raise BadRequest(
                f"--order model: {called[name]} has shape {list(parameters[called[name]])} in "
                f"{path} and {list(shape)} in the model of its {CONFIG}: it is the config of "
                f"another model; pass --config-dir DIR, or {ADVICE}"
            )


def renamed_parameters(
    checkpoint: Checkpoint, training: TrainingState, names: Mapping[str, str]
) -> NamedCheckpoint:
    """Return `checkpoint` and `training` with real parameter names. `names` maps each name that was
    made from a number to the real name. If a master gets the name of a 16-bit weight, the role of
    the weight becomes `param16`."""
    state = {key for key in checkpoint.tensors if key.name in names}
    masters = {names[key.name] for key in state if key.role == "param"}

    def renamed_key(key: Key) -> Key:
        if key in state:
            return Key(names[key.name], key.role)
        return Key(key.name, "param16") if key.role == "param" and key.name in masters else key

    groups = tuple(_members(group, names) for group in training.groups)
    return NamedCheckpoint(
        replace(
            checkpoint,
            tensors={renamed_key(key): tensor for key, tensor in checkpoint.tensors.items()},
        ),
        replace(
            training,
            groups=groups,
            scalars={
                Key(names.get(key.name, key.name), key.role): scalar
                for key, scalar in training.scalars.items()
            },
            unnamed={},
            is_ordered=True,
        ),
        tuple(group.params for group in groups),
    )


def _members(group: ParamGroup, names: Mapping[str, str]) -> ParamGroup:
    return replace(group, params=tuple(names.get(member, member) for member in group.params))


def without_optimizer(
    checkpoint: Checkpoint, training: TrainingState
) -> tuple[Checkpoint, TrainingState]:
    """Return the weights of the checkpoint, and the training state without the optimizer."""
    kept = {key: t for key, t in checkpoint.tensors.items() if not _is_state(key)}
    left = replace(training, groups=(), scalars={}, unnamed={}, optimizer=None)
    return replace(checkpoint, tensors=kept), replace(left, optimizer_wrapper=None)


def _is_state(key: Key) -> bool:
    return key.role not in (*WEIGHT_ROLES, STATE_ROLE)


NAMED_BY_MASTERS = (
    "the optimizer state has numbers instead of names; the names are known from the masters, "
    "because the cast of each master is equal to only one weight"
)


def with_numbered_state(
    weights: Checkpoint, known: TrainingState, table: FormatTable = FORMATS
) -> tuple[Checkpoint, TrainingState] | None:
    """Return `weights` and `known`, the training state of their run, with numbered optimizer state
    added; None if the checkpoint has no such state.

    Raises:
        BadFile: the state is damaged.
        Unsupported: the state is divided among several model-parallel ranks, or `known` is the
            state of several optimizers.
    """
    refuse_several_classes(weights.origin.path, known.groups)
    named = optimizer_roles(weights)
    found = None if named else format_of(weights, table).numbered_state(weights)
    if found is None:
        return None
    state, training = found
    if weights.root != state.root:
        raise BadFile(f"{weights.root} and {state.root} are not the same directory")
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
        flattened_parameters=training.flattened_parameters,
        loss_scaler=training.loss_scaler or known.loss_scaler,
        frozen=frozenset(),
    )


@dataclass(frozen=True)
class ProvedNames:
    """A checkpoint with proved names. `known_by` is a sentence that describes the proof."""

    named: NamedCheckpoint
    known_by: str


def with_proved_names(checkpoint: Checkpoint, training: TrainingState) -> ProvedNames | None:
    """Return `checkpoint` with real names for the numbered parameters of its optimizer; None unless
    masters or shapes prove all names.

    Raises:
        BadFile: a file is too short to contain a master or a weight.
    """
    if training.flattened_parameters:
        sections = sections_by_masters(checkpoint, training)
        if sections is None:
            return None
        checkpoint, training = split_flat_tensors(checkpoint, training, sections)
        members = [member for group in training.groups for member in group.params]
        names = dict(zip(members, (n for section in sections for n in section), strict=True))
        return ProvedNames(renamed_parameters(checkpoint, training, names), NAMED_BY_MASTERS)
    members = [member for group in training.groups for member in group.params]
    fitting = fitting_masters(checkpoint, training)
    alone = {member: names[0] for member, names in fitting.items() if len(names) == 1}
    if members and len({*alone.values()}) == len(members):
        return ProvedNames(renamed_parameters(checkpoint, training, alone), NAMED_BY_MASTERS)
    if any(not names for names in fitting.values()):
        return None
    names = names_by_shapes(checkpoint, training)
    return (
        ProvedNames(renamed_parameters(checkpoint, training, names), NAMED_BY_SHAPE)
        if names
        else None
    )


def names_by_shapes(checkpoint: Checkpoint, training: TrainingState) -> dict[str, str]:
    """Return the real name for each numbered parameter, if exactly one weight fits the shapes of
    its optimizer state. The result is empty unless that holds for every parameter."""
    from zerotools.ops.resume_from_other_program.match_parameter_order import state_shapes

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
