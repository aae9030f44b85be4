"""The torch_dist key of each tensor, and its position in that key's tensor.

    decoder.layers.7.mlp.linear_fc2.weight            decoder.layers.mlp.linear_fc2.weight [7]
    decoder.layers.7.mlp.experts.local_experts.3. ..  decoder.layers.mlp.experts.experts. .. [7, 3]

A block of layers is stacked if all its layers are alike, because Megatron then requests it so; else
each layer has separate keys. Other layers (`mtp.layers.0.`) are never stacked.

Source: megatron/core/transformer/transformer_block.py (`sharded_state_dict`) of 0.12 to 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Tensor
from zerotools.core.errors import BadRequest

_LAYER = re.compile(r"((?:decoder|encoder)\.layers\.)(\d+)\.(.+)", re.S)
_EXPERT = re.compile(r"(.*\.experts\.)local_experts\.(\d+)\.(.+)", re.S)


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """The part at `index` of the tensor stored as `flat`; `index` is empty for a tensor stored as a
    whole."""

    flat: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class StoredPlaces:
    """`counts` has the number of parts of each weight's key along its leading axes, by the weight's
    name. `alike` records for each block whether its layers are stacked."""

    counts: Mapping[str, tuple[int, ...]]
    alike: Mapping[str, bool]

    @property
    def is_uniform(self) -> bool:
        return all(self.alike.values())

    def of(self, name: str) -> StoredPlace:
        """Return the position of the weight of this name."""
        return _place(name, self.alike)


def stored_places(path: Path, tensors: Mapping[str, Tensor]) -> StoredPlaces:
    """Return the positions of the weights `tensors`, by the names of a model on one rank, of the
    checkpoint at `path`.

    Raises:
        BadRequest: a layer or an expert is missing, or experts of one layer differ in shape.
    """
    blocks: dict[str, dict[int, dict[str, tuple[object, ...]]]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.fullmatch(name):
            layers = blocks.setdefault(match[1], {})
            layers.setdefault(int(match[2]), {})[match[3]] = (tensor.dtype, tensor.shape)
    for block, layers in blocks.items():
        _refuse_gaps(path, f"{block}N", layers)
    alike = {block: len({tuple(sorted(each.items(), key=_name)) for each in layers.values()}) == 1
             for block, layers in blocks.items()}  # fmt: skip
    parts: dict[str, dict[tuple[int, ...], str]] = {}
    for name in tensors:
        place = _place(name, alike)
        parts.setdefault(place.flat, {})[place.index] = name
    counts: dict[str, tuple[int, ...]] = {}
    for flat, each in parts.items():
        counts |= dict.fromkeys(each.values(), _counts(path, flat, each, tensors))
    return StoredPlaces(counts, alike)


def _name(entry: tuple[str, tuple[object, ...]]) -> str:
    return entry[0]


def _place(name: str, alike: Mapping[str, bool]) -> StoredPlace:
    flat, index = name, list[int]()
    if (match := _LAYER.fullmatch(flat)) and alike[match[1]]:
        flat = match[1] + match[3]
        index.append(int(match[2]))
    if match := _EXPERT.fullmatch(flat):
        flat = f"{match[1]}experts.{match[3]}"
        index.append(int(match[2]))
    return StoredPlace(flat, tuple(index))


def _counts(
    path: Path, flat: str, parts: Mapping[tuple[int, ...], str], tensors: Mapping[str, Tensor]
) -> tuple[int, ...]:
    axes = len(next(iter(parts)))
    counts = tuple(max(index[axis] for index in parts) + 1 for axis in range(axes))
    for axis in range(axes):
        _refuse_gaps(path, flat, {index[axis] for index in parts})
    total = 1
    for count in counts:
        total *= count
    if total != len(parts):
        raise BadRequest(
            f"{path}: {flat} has {len(parts)} parts, but {' x '.join(map(str, counts))} are "
            "needed: layers have different numbers of experts"
        )
    first, *others = parts.values()
    for name in others:
        ours, theirs = tensors[first], tensors[name]
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise BadRequest(
                f"{path}: {first} is {ours.dtype} of shape {list(ours.shape)} but {name} is "
                f"{theirs.dtype} of shape {list(theirs.shape)}; Megatron needs one type and shape "
                "to keep them in one tensor"
            )
    return counts


def _refuse_gaps(path: Path, what: str, numbers: Mapping[int, object] | set[int]) -> None:
    missing = next((n for n in range(len(numbers)) if n not in numbers), None)
    if missing is not None:
        raise BadRequest(
            f"{path} has {len(numbers)} of {what} up to number {max(numbers)}, but not number "
            f"{missing}: the model is not complete"
        )
