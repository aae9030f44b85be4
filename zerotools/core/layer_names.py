"""Find the layer of a model that a tensor belongs to, from the tensor's name.

model.layers.3.mlp.experts.7.w1.weight    layer model.layers.3, kind mlp.experts.*.w1.weight
lm_head.weight                            layer lm_head,        kind weight
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

_NUMBERED = re.compile(r"((?:[^.]+\.)*?\d+)\.(.+)")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_MOST_DIGITS = 18
"""A longer number is not the number of a layer. Python refuses to convert very long ones."""

_Number = tuple[int, str]
"""The length and the digits of a number, which sort as the number does."""


class Named(Protocol):
    """The interface of an object that has the name and the role of a tensor as attributes."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...


T = TypeVar("T", bound=Named)


class LayerPlace(NamedTuple):
    """The layer of a tensor, and the kind of the tensor. Tensors with the same function in
    different layers have the same kind.
    """

    layer: str
    kind: str

    @property
    def is_numbered(self) -> bool:
        """True if the layer is one of several with numbers."""
        return _number_of(self.layer) is not None


def _number_of(layer: str) -> int | None:
    last = layer.rpartition(".")[2]
    return int(last) if _is_number(last) and len(last) <= _MOST_DIGITS else None


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal()


def place_of(name: str) -> LayerPlace:
    """Return the layer and the kind of the tensor `name`.

    The name of the layer ends with the first number in `name`. If `name` contains no number, the
    layer is the module that holds the tensor.
    """
    found = _NUMBERED.fullmatch(name)
    if found is not None:
        return LayerPlace(found[1], _NUMBER.sub("*", found[2]))
    module, _, last = name.rpartition(".")
    return LayerPlace(module or last, last)


def layers_in_order(names: Iterable[str]) -> list[str]:
    """Return each layer of the tensors `names` once, in the order of `names`, except that numbered
    layers of one module are sorted by number.
    """
    groups: dict[str, set[tuple[int, str]]] = {}
    for layer in dict.fromkeys(place_of(name).layer for name in names):
        number = _number_of(layer)
        group = layer if number is None else f"{layer.rpartition('.')[0]}.*"
        groups.setdefault(group, set()).add((number or 0, layer))
    return [layer for group in groups.values() for _, layer in sorted(group)]


def in_order_of_numbers(tensors: Sequence[T]) -> list[T]:
    """Return `tensors` sorted so that numbered modules, such as layers, are in numerical order: 2
    before 10.

    If this is already so, nothing changes. Otherwise the tensors of a module become neighbours, and
    modules without a number keep the order of their first tensors. If `tensors` lists one role
    after the other, so does the result.
    """
    modules: dict[tuple[int, str], int] = {}
    places: dict[tuple[int, str], tuple[int, dict[_Number, None]]] = {}
    orders: list[list[tuple[int, _Number]]] = []
    for tensor in tensors:
        order, module = [], 0
        for part in tensor.name.split("."):
            is_number = _is_number(part)
            digits = part.lstrip("0") if is_number else ""
            number = (len(digits), digits)
            sibling = (module, "*" if is_number else part)
            place, numbers = places.setdefault(sibling, (len(places), {}))
            numbers[number] = None
            order.append((place, number))
            module = modules.setdefault((module, part), len(modules) + 1)
        orders.append(order)
    if all([*numbers] == sorted(numbers) for _, numbers in places.values()):
        return [*tensors]
    ranks = {role: n for n, role in enumerate(dict.fromkeys(each.role for each in tensors))}
    roles = [ranks[each.role] for each in tensors]
    if roles != sorted(roles):
        roles = [0] * len(tensors)
    return [tensors[n] for n in sorted(range(len(tensors)), key=lambda n: (roles[n], orders[n]))]
