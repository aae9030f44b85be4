"""Find the parameter name for each number of a torch optimizer, if an order of names is known.

torch numbers the parameters in the order of its param groups. The order of names comes from a file
with the names of each group, or from the model. If it comes from the model, the parameters of each
group are in the model's order, but their division into groups must be found. If there are several
groups, the shapes of the state usually allow only one division: matrices have weight decay, and
vectors do not. If the shapes allow several divisions, exactly one of the usual rules must fit.
Otherwise zerotools does not guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES, Shape, state_fits

_MOST_WAYS = 256


@dataclass(frozen=True)
class NameOrder:
    """An order of the trained parameters, with their shapes.

    Attributes:
        decayed: the parameters to which transformers would apply weight decay; None if unknown.
        sections: the names of each param group, if the order is that of the optimizer.
        can_be_concatenated: the names may be those of all groups, one group after another.
        option: the option that gave the order.
        advice: a phrase for messages: how to give the names in a file.
    """

    parameters: Mapping[str, Shape]
    decayed: Collection[str] | None = None
    sections: Sequence[Sequence[str]] = ()
    can_be_concatenated: bool = False
    option: str = "--order"
    advice: str = "pass --order FILE"


@dataclass(frozen=True)
class _Numbers:
    """The param groups of an optimizer, with names made from numbers. `state` has the shapes of
    each parameter's state, keyed by role."""

    groups: Sequence[ParamGroup]
    state: Mapping[str, Mapping[str, Shape]]
    parameters: Mapping[str, Shape]

    @property
    def members(self) -> list[str]:
        return [member for group in self.groups for member in group.params]

    @property
    def sizes(self) -> list[int]:
        return [len(group.params) for group in self.groups]

    def fits(self, member: str, name: str) -> bool:
        return state_fits(self.state.get(member, {}), self.parameters[name])

    def named(self, names: Sequence[str]) -> dict[str, str] | None:
        """Return the name of each numbered parameter, taken from `names` in order; None if a shape
        differs."""
        found = dict(zip(self.members, names, strict=True))
        return found if all(self.fits(m, name) for m, name in found.items()) else None


def state_shapes(checkpoint: Checkpoint, training: TrainingState) -> dict[str, dict[str, Shape]]:
    """Return the shapes of the state of each numbered parameter, keyed by name and then by role."""
    found: dict[str, dict[str, Shape]] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.name in training.unnamed and key.role not in (*WEIGHT_ROLES, STATE_ROLE):
            found.setdefault(key.name, {})[key.role] = tensor.shape
    return found


def names_of_numbers(
    groups: Sequence[ParamGroup],
    state: Mapping[str, Mapping[str, Shape]],
    order: NameOrder,
    where: str,
) -> dict[str, str]:
    """Return the real name of each parameter in `groups`, which have names made from numbers.
    `state` has the shapes of each parameter's state, keyed by role.

    Raises:
        BadRequest: the order does not fit, or fits in several ways.
    """
    numbers = _Numbers(groups, state, order.parameters)
    if len(order.sections) > 1:
        return _by_sections(numbers, order, where)
    found: list[dict[str, str]] = []
    if sum(numbers.sizes) == len(order.parameters):
        ways = _in_order(numbers, order)
        whole = numbers.named(list(order.parameters)) if order.can_be_concatenated else None
        found = [way for n, way in enumerate(ways) if way not in ways[:n]]
        found += [whole] if whole is not None and whole not in found else []
    if len(found) == 1:
        return found[0]
    sizes = " and ".join(map(str, numbers.sizes))
    members = numbers.members
    if found:
        first = next(m for m in members if found[0][m] != found[1][m])
        raise BadRequest(
            f"{where} has numbers instead of names in its optimizer state (groups of {sizes}): "
            f"number {members.index(first)} may be {found[0][first]} or {found[1][first]}; "
            f"{order.advice} with the names in the order of the optimizer, and an empty line "
            "between its groups"
        )
    ours, theirs = _elements(state), sum(map(prod, order.parameters.values()))
    is_as_large = (len(members), ours) == (len(order.parameters), theirs)
    why = (
        "their shapes differ, so the optimizer got its parameters in another order"
        if is_as_large
        else "it is the order of another model, or some of its parameters were not trained"
    )
    raise BadRequest(
        f"{where} has the optimizer state of {len(members)} parameters ({sizes} in its groups, "
        f"{ours} elements), but the order has {len(order.parameters)} names ({theirs} "
        f"elements): {why}; {order.advice} with the names in the order of the optimizer, and an "
        "empty line between its groups"
    )


def _elements(state: Mapping[str, Mapping[str, Shape]]) -> int:
    return sum(max(map(prod, shapes.values()), default=0) for shapes in state.values())


def _by_sections(numbers: _Numbers, order: NameOrder, where: str) -> dict[str, str]:
    """Return the real names from a file with the names of each group."""
    sections = order.sections
    groups = [group for group in numbers.groups if group.params]
    if [len(group.params) for group in groups] != [len(section) for section in sections]:
        counts = " and ".join(str(len(each)) for each in sections)
        raise BadRequest(
            f"{order.option} has {counts} names, and the param groups of {where} have "
            f"{' and '.join(map(str, numbers.sizes))} parameters; put "
            "an empty line between the names of two groups, and name every parameter"
        )
    names = [name for section in sections for name in section]
    found = dict(zip(numbers.members, names, strict=True))
    for number, (member, name) in enumerate(found.items()):
        if not numbers.fits(member, name):
            shapes = sorted({*numbers.state[member].values()} - {()})
            raise BadRequest(
                f"{order.option} has {name} as number {number}, which has shape "
                f"{list(numbers.parameters[name])}, and the optimizer state of number {number} in "
                f"{where} has {' and '.join(str(list(shape)) for shape in shapes)}; correct the "
                "order of the names"
            )
    return found


def _in_order(numbers: _Numbers, order: NameOrder) -> list[dict[str, str]]:
    """Return the possible divisions into groups that keep the parameters of every group in the
    model's order. Of several, return only those that follow the usual rules."""
    ways = _divisions(numbers.groups, list(order.parameters), numbers.fits)
    if ways is not None and len(ways) <= 1:
        return ways
    found = (numbers.named(names) for names in _by_rule(numbers, order))
    return [way for way in found if way is not None] or ways or []


@dataclass(frozen=True)
class _Step:
    """A step of the search for divisions: the group that a name was assigned to, and the previous
    step."""

    group: int
    before: _Step | None


def _divisions(
    groups: Sequence[ParamGroup], names: Sequence[str], may_be: Callable[[str, str], bool]
) -> list[dict[str, str]] | None:
    """Return at most two ways to divide `names` among `groups` in their order; None if the search
    would be too large."""
    ways: dict[tuple[int, ...], list[_Step | None]] = {(0,) * len(groups): [None]}
    for name in names:
        longer: dict[tuple[int, ...], list[_Step | None]] = {}
        for filled, steps in ways.items():
            for at, group in enumerate(groups):
                if filled[at] < len(group.params) and may_be(group.params[filled[at]], name):
                    place = (*filled[:at], filled[at] + 1, *filled[at + 1 :])
                    known = longer.setdefault(place, [])
                    known += [_Step(at, step) for step in steps][: 2 - len(known)]
        ways = longer
        if len(ways) > _MOST_WAYS:
            return None
    done = ways.get(tuple(len(group.params) for group in groups), [])
    return [_names_of(groups, names, step) for step in done]


def _names_of(
    groups: Sequence[ParamGroup], names: Sequence[str], last: _Step | None
) -> dict[str, str]:
    left = [list(group.params) for group in groups]
    found: dict[str, str] = {}
    for name in reversed(names):
        assert last is not None
        found[left[last.group].pop()] = name
        last = last.before
    return {member: found[member] for group in groups for member in group.params}


def _by_rule(numbers: _Numbers, order: NameOrder) -> Iterator[list[str]]:
    """Yield the names in the order of two groups, one with weight decay and one without it."""
    if len(numbers.groups) != 2:
        return
    matrices = {name for name, shape in order.parameters.items() if len(shape) >= 2}
    for decaying in (order.decayed, matrices):
        if decaying is None:
            continue
        front = [name for name in order.parameters if name in decaying]
        back = [name for name in order.parameters if name not in decaying]
        for parts in ((front, back), (back, front)):
            if [*map(len, parts)] == numbers.sizes and _may_decay(numbers, parts[0] is front):
                yield [*parts[0], *parts[1]]


def _may_decay(numbers: _Numbers, is_first: bool) -> bool:
    """Return whether the first of two groups (`is_first`), or else the second, may be the one with
    weight decay, according to the options of both."""
    rates = [group.options.get("weight_decay") for group in numbers.groups]
    one, other = rates if is_first else rates[::-1]
    return bool(one) or not other
