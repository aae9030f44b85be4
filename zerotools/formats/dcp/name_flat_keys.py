"""Assign a name and a role to each flat key of a DCP.

    <model>.<fqn>                       (fqn, param)
    <optimizer>.state.<fqn>.<state>     (fqn, state)      torch, accelerate, torchtitan
    optim.<fqn>.<state>                 (fqn, state)      a zerotools job

<model> is the section of the model that is read, and <optimizer> is the section of its optimizer.
All other values, such as counters of the run or tensors of other models, have the role `state`.
Their name is their flat key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Key
from zerotools.formats.dcp.key_paths import values_of
from zerotools.formats.dcp.model_sections import (
    ModelChoice,
    Section,
    Sections,
    choose_model,
    find_sections,
    optimizers_of_model,
)
from zerotools.formats.dcp.optimizer_sections import OptimizerSection
from zerotools.formats.torch_optimizers import (
    NAMED_BY_SHAPE,
    ORDER_UNKNOWN,
    Shape,
    names_by_shape,
)
from zerotools.io.distcp.metadata import Metadata

STATE_ROLE = "state"
# Roles of weights. Optimizer state with such a name keeps its flat key, so that it is not read as a
# weight.
_WEIGHTS = ("param", "param16", "buffer", STATE_ROLE)
_JOB_MODEL, _JOB_OPTIMIZER = "model.", "optim."


@dataclass(frozen=True)
class NamedKeys:
    """The names and roles that `name_tensors` gives to the flat keys of a checkpoint.

    Attributes:
        keys: flat key -> its name and role.
        optimizers: the flat key prefixes of the optimizers that train the model.
        numbered: the number of a parameter in an optimizer -> the name of this parameter.
        notes: sentences for the user.
        question: asks the user to select one of several models; None if only one is possible. Until
            one is selected, the tensors of all models have their flat keys as names.
    """

    keys: Mapping[str, Key]
    optimizers: tuple[str, ...] = ()
    numbered: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    question: str | None = None


def name_tensors(metadata: Metadata, path: object, section: str | None = None) -> NamedKeys:
    """Give each flat key of the checkpoint at `path` a name and a role; `section` is the model
    that the user selected.

    Raises:
        BadRequest: the section does not exist.
    """
    sections = find_sections(values_of(metadata))
    choice = choose_model(sections, path, section)
    found: dict[str, Key] = {}
    if choice.model is not None:
        found |= {flat: Key(name, "param") for flat, name in choice.model.names.items()}
    elif choice.question is not None:
        found |= {flat: Key(flat, "param") for model in sections.models for flat in model.names}
    numbered: dict[int, str] = {}
    mine: list[str] = []
    said: dict[str, None] = {}
    for owner, before in _trained(sections, choice):
        for optimizer in (
            optimizers_of_model(sections, owner) if sections.models else sections.optimizers
        ):
            mine += [optimizer.prefix] if choice.question is None else []
            known: dict[int, str] = {}
            if optimizer.is_numbered:
                known = {} if before else _by_shape(optimizer, owner)
                said[NAMED_BY_SHAPE if known else ORDER_UNKNOWN] = None
            numbered |= known
            found |= dict(_state(optimizer, owner, known, before))
    keys = {flat: found.get(flat) or Key(flat, STATE_ROLE) for flat in metadata.tensors}
    return NamedKeys(
        _distinct(keys), tuple(mine), numbered, (*choice.notes, *said), choice.question
    )


def _trained(sections: Sections, choice: ModelChoice) -> Iterator[tuple[Section, str]]:
    """Yield (model, prefix) for each model that an optimizer may train. The name of optimizer state
    is `prefix` followed by the weight's name.

    The prefix is empty unless several models may be read and none was chosen.
    """
    if choice.model is not None:
        yield choice.model, ""
    elif not sections.models:
        yield Section((), {}, {}), ""
    else:
        yield from ((model, f"{model.label}." if model.path else "") for model in sections.models)


def _state(
    optimizer: OptimizerSection, owner: Section, known: Mapping[int, str], before: str
) -> Iterator[tuple[str, Key]]:
    for flat, (name, role) in optimizer.state.items():
        if role in _WEIGHTS:
            continue
        if optimizer.is_numbered:
            name = known.get(int(name), f"{optimizer.prefix}state.{name}")
        elif name not in owner.known and name.removeprefix("state.") in owner.known:
            name = name.removeprefix("state.")
        yield flat, Key(before + name, role)


def _by_shape(optimizer: OptimizerSection, owner: Section) -> dict[int, str]:
    """Return the names of an optimizer's numbered parameters, keyed by number. The result is empty
    unless the shapes of each parameter's state fit exactly one weight.
    """
    state: dict[int, dict[str, Shape]] = {}
    for flat, (number, role) in optimizer.state.items():
        state.setdefault(int(number), {})[role] = optimizer.tensors[flat].shape
    weights = {
        owner.names[flat]: tensor.shape
        for flat, tensor in owner.tensors.items()
        if tensor.dtype.is_float
    }
    return names_by_shape(list(state), state, weights)


def job_keys(flats: Iterable[str]) -> dict[str, Key]:
    """Return the name and role of each flat key in a zerotools job, which has one model and one
    optimizer.
    """
    return _distinct({flat: _job_key(flat) for flat in flats})


def _job_key(flat: str) -> Key:
    if flat.startswith(_JOB_MODEL):
        return Key(flat.removeprefix(_JOB_MODEL), "param")
    name, _, role = flat.removeprefix(_JOB_OPTIMIZER).rpartition(".")
    if flat.startswith(_JOB_OPTIMIZER) and name and role not in _WEIGHTS:
        return Key(name, role)
    return Key(flat, STATE_ROLE)


def _distinct(keys: Mapping[str, Key]) -> dict[str, Key]:
    """Return a unique Key for each flat key. The second flat key with the same Key gets the role
    `state` and its flat key as the name.
    """
    found: dict[str, Key] = {}
    taken: set[Key] = set()
    for flat, key in keys.items():
        if key in taken:
            key = Key(flat, STATE_ROLE)
        taken.add(key)
        found[flat] = key
    return found
