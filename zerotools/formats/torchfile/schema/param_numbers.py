"""torch's optimizers number the parameters; which name is number 3?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerotools.formats.torch_optimizers import (
    NAMED_BY_SHAPE,
    ORDER_UNKNOWN,
    Shape,
    names_by_shape,
)
from zerotools.formats.torchfile.schema.pieces import PartialTensor

Moments = Mapping[tuple[str | int, str], PartialTensor]


def numbered_name(number: int) -> str:
    """Return the name that stands for a parameter which the optimizer has by number alone."""
    return f"optimizer.state.{number}"


def names_by_number(
    groups: Sequence[Any], moments: Moments, weights: Mapping[str, Shape]
) -> tuple[dict[int, str], str | None]:
    """Return the names of the numbered parameters of a torch optimizer, and a sentence for the
    user.

    The groups have them (`param_names`, torch 2.6 and later) if the optimizer was made from named
    parameters. Else shapes may prove them. Else the state keeps its numbers. `weights` are those of
    floating-point types.
    """
    named = _said(groups)
    if named is not None:
        return named, None
    state: dict[int, dict[str, Shape]] = {}
    for (parameter, role), pieces in moments.items():
        if isinstance(parameter, int):
            state.setdefault(parameter, {})[role] = pieces.shape
    if not state:
        return {}, None
    numbers = [number for group in groups for number in _numbers(group) or ()]
    found = names_by_shape(numbers or list(state), state, weights)
    return found, NAMED_BY_SHAPE if found else ORDER_UNKNOWN


def float_shapes(weights: Mapping[str, PartialTensor]) -> dict[str, Shape]:
    """Return the shapes of the weights of floating-point types."""
    return {name: pieces.shape for name, pieces in weights.items() if pieces.dtype.is_float}


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
