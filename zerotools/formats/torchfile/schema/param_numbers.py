"""torch's optimizers number the parameters; which name is number 3?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.formats.torchfile.schema.pieces import PartialTensor

Moments = Mapping[tuple[str | int, str], PartialTensor]


def numbered_name(number: int) -> str:
    """What a parameter is called that the optimizer has by number alone."""
    return f"optimizer.state.{number}"


def names_by_number(
    groups: Sequence[Any], moments: Moments, weights: Mapping[str, PartialTensor]
) -> tuple[dict[int, str], str | None]:
    """Names of the numbered parameters of a torch optimizer, and a sentence for the user.

    The groups say it themselves (`param_names`, torch 2.6 and later) where the optimizer was made
    of named parameters. Else a single group over as many parameters as there are floating-point
    weights has them in the model's order, if every shape agrees. Several groups are in no known
    order: their state keeps its numbers.
    """
    named = _said(groups)
    if named is not None:
        return named, None
    if not any(isinstance(parameter, int) for parameter, _ in moments):
        return {}, None
    counted = _in_order(groups, moments, weights)
    if counted is not None:
        return counted, (
            "the optimizer state is numbered; the names are those of the weights, in the same order"
        )
    return {}, (
        "the optimizer state is numbered, and nothing in the file says which number belongs to "
        "which parameter"
    )


def _said(groups: Sequence[Any]) -> dict[int, str] | None:
    names: dict[int, str] = {}
    for group in groups:
        numbers = _numbers(group)
        said = None if numbers is None else group.get("param_names")
        if numbers is None or not isinstance(said, list) or len(said) != len(numbers):
            return None
        names |= {number: str(name) for number, name in zip(numbers, said, strict=True)}
    return names or None


def _numbers(group: Any) -> list[int] | None:
    numbers = group.get("params") if isinstance(group, dict) else None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return None
    return numbers


def _in_order(
    groups: Sequence[Any], moments: Moments, weights: Mapping[str, PartialTensor]
) -> dict[int, str] | None:
    numbers = _numbers(groups[0]) if len(groups) == 1 else None
    candidates = [name for name, pieces in weights.items() if pieces.dtype.is_float]
    if numbers is None or len(numbers) != len(candidates):
        return None
    names = dict(zip(numbers, candidates, strict=True))
    for (number, _), pieces in moments.items():
        name = names.get(number) if isinstance(number, int) else None
        if name is None or pieces.shape not in ((), (1,), weights[name].shape):
            return None
    return names
