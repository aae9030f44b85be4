"""Find the layer of a model that a tensor belongs to, from the tensor's name.

model.layers.3.mlp.experts.7.w1.weight    layer model.layers.3, kind mlp.experts.*.w1.weight
lm_head.weight                            layer lm_head,        kind weight
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NUMBERED = re.compile(r"((?:[^.]+\.)*?\d+)\.(.+)")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


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
    return int(last) if last.isascii() and last.isdecimal() else None


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
