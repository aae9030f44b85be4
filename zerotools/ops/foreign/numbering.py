"""Which parameter is number 3 of a torch optimizer? What the model's own order says of it.

torch numbers the parameters in the order of its param groups. Programs make one group of
`model.parameters()`, or two: what decays and what does not, each in the model's order, as
transformers and most loops do. Which of these it was is seen by the number of parameters and the
shape of each one's state; where two ways fit and differ, none is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from zerotools.core.errors import BadRequest

Shape = tuple[int, ...]


def names_of_numbers(
    groups: Sequence[Sequence[str]],
    shapes: Mapping[str, Shape],
    parameters: Mapping[str, Shape],
    decayed: Collection[str] | None,
    where: str,
) -> dict[str, str]:
    """The name of each member of `groups`, which are the optimizer's made-up names.

    `shapes` are those of its state, where it has any. `parameters` are the trained ones with
    their shapes, in the model's order; `decayed` those that transformers would decay, None where
    that is not known.

    Raises:
        BadRequest: no order fits, or several do.
    """
    members = [member for group in groups for member in group]
    found: list[dict[str, str]] = []
    for order in _orders(groups, parameters, decayed):
        names = dict(zip(members, order, strict=True))
        if names not in found and all(
            shapes.get(member, parameters[name]) == parameters[name]
            for member, name in names.items()
        ):
            found.append(names)
    if len(found) == 1:
        return found[0]
    sizes = " and ".join(str(len(group)) for group in groups)
    if found:
        first = next(m for m in members if found[0][m] != found[1][m])
        raise BadRequest(
            f"{where} has its state by number, and number {members.index(first)} may be "
            f"{found[0][first]} or {found[1][first]}: save it by torch's get_optimizer_state_dict, "
            "which has names"
        )
    raise BadRequest(
        f"{where} has the state of {len(members)} parameters ({sizes} in its groups, "
        f"{_elements(shapes)} elements) and the model has {len(parameters)} "
        f"({_elements(parameters)} elements), which fit in no usual order: it is of another model, "
        "or its groups were made in a way of their own"
    )


def _elements(shapes: Mapping[str, Shape]) -> int:
    return sum(prod(shape) for shape in shapes.values())


def _orders(
    groups: Sequence[Sequence[str]],
    parameters: Mapping[str, Shape],
    decayed: Collection[str] | None,
) -> Iterator[list[str]]:
    """All names in the orders that programs use, those that fit the sizes of the groups."""
    sizes = [len(group) for group in groups]
    if sum(sizes) != len(parameters):
        return
    if len(groups) == 1:
        yield list(parameters)
    if len(groups) != 2:
        return
    matrices = {name for name, shape in parameters.items() if len(shape) >= 2}
    for first in (decayed, matrices):
        if first is None:
            continue
        front = [name for name in parameters if name in first]
        back = [name for name in parameters if name not in first]
        for one, other in ((front, back), (back, front)):
            if [len(one), len(other)] == sizes:
                yield one + other
