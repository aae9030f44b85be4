"""Give the tensors of another program's checkpoint the names of the job's model.

The names may differ because a wrapper of the model added a prefix to all names (`module.`,
`_orig_mod.`), or because a tied weight is stored under another of its names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup
from zerotools.formats.torch_optimizers import WEIGHT_ROLES, Shape, names_by_shape
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun
from zerotools.ops.resume_from_other_program.match_masters import check_masters
from zerotools.ops.resume_from_other_program.match_parameter_order import (
    NameOrder,
    names_of_numbers,
    state_shapes,
)
from zerotools.ops.resume_from_other_program.name_numbered_state import with_proved_names
from zerotools.ops.resume_from_other_program.parameter_order_option import MODEL, read_order

RESUME_ORDER = "resume_order"
"""The key of a job file that gives the order of parameter names."""


@dataclass(frozen=True)
class WantedModel:
    """The model of a job.

    Attributes:
        parameters: the trained parameters, in the model's order.
        buffers: the buffers that belong to the model's state.
        aliases: a dict from the other names of tied parameters to the first name of each.
        decayed: the parameters to which transformers would apply weight decay; None if unknown.
    """

    parameters: Mapping[str, Shape]
    buffers: Mapping[str, Shape]
    aliases: Mapping[str, str]
    decayed: Collection[str] | None = None


def with_job_names(
    run: ForeignRun, wanted: WantedModel, *, by_number: bool = True, order: str | None = None
) -> ForeignRun:
    """Return `run` with the names of the job's model for all tensors that this model has.

    If `by_number` is False, numbered optimizer state keeps its numbers, and no file data is read.
    `order` is "model", or a file with the job's names. It names numbered state if masters and
    shapes do not prove the names.

    Raises:
        BadRequest: the state is numbered, and its names are not known; or the order contradicts the
            masters or the shapes.
        BadFile: a file is too short to contain a master or a weight that proves a name.
    """
    run = _proved(run, order) if by_number else run
    numbered = _numbered(run, wanted, order) if by_number else {}
    weights = [key.name for key in run.checkpoint.tensors if key.role in WEIGHT_ROLES]
    prefix = _prefix({*weights, *run.checkpoint.aliases} - {*run.training.unnamed}, wanted)
    if numbered:
        groups = [[prefix + numbered[m] for m in group.params] for group in run.training.groups]
        check_masters(run.checkpoint, run.training, groups, RESUME_ORDER)
    tied = {**wanted.aliases, **_tied_there(run, prefix, wanted)}

    def renamed(name: str) -> str:
        name = numbered.get(name) or name.removeprefix(prefix)
        return tied.get(name, name)

    return replace(
        run,
        checkpoint=replace(
            run.checkpoint,
            tensors={
                Key(renamed(key.name), key.role): tensor
                for key, tensor in run.checkpoint.tensors.items()
            },
            aliases={},
        ),
        training=replace(
            run.training,
            groups=tuple(
                ParamGroup(tuple(dict.fromkeys(map(renamed, group.params))), group.options)
                for group in run.training.groups
            ),
            scalars={
                Key(renamed(key.name), key.role): scalar
                for key, scalar in run.training.scalars.items()
            },
            frozen=frozenset(map(renamed, run.training.frozen)),
            unnamed={} if by_number else run.training.unnamed,
        ),
        numbers={Key(renamed(key.name), key.role): n for key, n in run.numbers.items()},
    )


def _proved(run: ForeignRun, order: str | None) -> ForeignRun:
    """Return `run` with names for numbered state, if the checkpoint proves them and the user gave
    no file with an order. A note says so if the job's order is not used."""
    training, is_file = run.training, order not in (None, MODEL)
    why = "the checkpoint has the names of the optimizer's parameters"
    if training.unnamed:
        if is_file and not training.flattened_parameters:
            return run  # the order is checked against the masters and the shapes
        proved = with_proved_names(run.checkpoint, training)
        if proved is None:
            return run
        why, training = proved.known_by, proved.named.training
        numbers = {key: scalar.value for key, scalar in training.scalars.items()}
        run = replace(run, checkpoint=proved.named.checkpoint, training=training, numbers=numbers)
    if order is None:
        return run
    return replace(run, notes=(*run.notes, unused_order(order, why)))


def unused_order(order: str, why: str) -> str:
    """Return the note that the job's order is ignored, with the reason `why`."""
    return f"{RESUME_ORDER} = {order} is ignored: {why}"


def _numbered(run: ForeignRun, wanted: WantedModel, order: str | None) -> dict[str, str]:
    unnamed = run.training.unnamed
    if not unnamed:
        return {}
    if run.training.flattened_parameters:
        raise BadRequest(
            f"{run.path} has the optimizer state of each param group as one flat tensor, and no "
            "file lists the parameters in it: name them with zerotools convert --to job --order "
            "FILE, with an empty line between groups; then set resume_from to the output"
        )
    state = state_shapes(run.checkpoint, run.training)
    where = str(run.directory / run.optimizer_file) if run.optimizer_file else str(run.path)
    if order is not None:
        return names_of_numbers(run.training.groups, state, _given(order, wanted), where)
    numbers = {number: state.get(member, {}) for member, number in unnamed.items()}
    named = names_by_shape([*numbers], numbers, wanted.parameters)
    if not named:
        raise BadRequest(
            f"{where} has numbers instead of weight names in its optimizer state, and no file "
            "has the names. If the optimizer got the parameters in the order of the model, set "
            f'{RESUME_ORDER} = "model". Otherwise set {RESUME_ORDER} to a text file with the '
            "names in the order of the optimizer: one per line, and an empty line between "
            "param groups"
        )
    return {member: named[number] for member, number in unnamed.items()}


def _given(order: str, wanted: WantedModel) -> NameOrder:
    """Return the order of names in the job's key `resume_order`."""
    advice = f'set {RESUME_ORDER} = "FILE"'
    if order == MODEL:
        return NameOrder(wanted.parameters, wanted.decayed, option=RESUME_ORDER, advice=advice)
    sections = [[wanted.aliases.get(n, n) for n in names] for names in read_order(Path(order))]
    names = [name for section in sections for name in section]
    strange = next((name for name in names if name not in wanted.parameters), None)
    if strange is not None:
        raise BadRequest(
            f"{RESUME_ORDER} = {order}: {strange} is not a parameter that the job trains; correct "
            "the name"
        )
    return NameOrder(
        {name: wanted.parameters[name] for name in names},
        None,
        sections,
        can_be_concatenated=True,
        option=RESUME_ORDER,
        advice=advice,
    )


def _prefix(names: Collection[str], wanted: WantedModel) -> str:
    """Return the prefix, such as `module.`, that `names` has before all names of the job's
    parameters, or "" if there is no such prefix.
    """
    known = {*wanted.parameters, *wanted.aliases}
    first = next(iter(wanted.parameters), "")
    if first in names:
        return ""
    for name in names:
        prefix = name.removesuffix(first)
        if name.endswith(f".{first}") and all(prefix + each in names for each in wanted.parameters):
            return prefix if prefix + first not in known else ""
    return ""


def _tied_there(run: ForeignRun, prefix: str, wanted: WantedModel) -> dict[str, str]:
    """Return the tied parameters that have different names in the checkpoint and in the job, as
    name in the checkpoint -> name in the job.
    """
    found = {}
    for alias, holder in run.checkpoint.aliases.items():
        alias, holder = alias.removeprefix(prefix), holder.removeprefix(prefix)
        name = wanted.aliases.get(alias, alias)
        if name in wanted.parameters and holder not in wanted.parameters:
            found[holder] = name
    return found
