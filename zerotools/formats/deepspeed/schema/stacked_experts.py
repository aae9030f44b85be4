"""AutoEP's experts: one tensor for each weight of a layer; every expert-parallel rank has a block.

    ds_autoep_layers: [{expert_key_prefix: "model.layers.0.mlp.experts", num_experts: 4, ep_size: 2,
                        expert_placement: {ranks: [{rank: 0, experts: [0, 1]}, ...]}}]
    model.layers.0.mlp.experts.w1      on each rank of shape (2, ...), and (4, ...) over all
    model.layers.0.mlp.experts.w1.3    in a file of expert 3: its part, without the first axis
    model.layers.0.mlp.gate.gate.weight      the router again, for transformers' hooks
    model.layers.0.mlp.router.gate.weight

Source: DeepSpeed 0.19.8 `runtime/engine.py`: `_save_moe_checkpoint`; `checkpoint/autoep_affine.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.schema.model_tree import NUM_EXPERTS

_PREFIX, _RANKS = "expert_key_prefix", "ep_size"
_PLACEMENT = "expert_placement"
_MOST_EXPERTS = 2**16


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """Experts [first, first + count) of `total`, along the first axis."""

    first: int
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """`layers` has for each prefix of names the block of each expert-parallel rank."""

    layers: Mapping[str, tuple[ExpertBlock, ...]] = field(default_factory=dict)

    @property
    def ep_size(self) -> int | None:
        """The expert-parallel ranks, which are as many for all layers; None without layers."""
        return next((len(blocks) for blocks in self.layers.values()), None)

    def blocks(self, name: str) -> tuple[ExpertBlock, ...]:
        """Return the block of each expert-parallel rank of the weight `name`; () if it is not an
        expert's."""
        return self.layers.get(name.rpartition(".")[0], ())

    def whole_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape over all ranks of a tensor that has `shape` on each."""
        blocks = self.blocks(name)
        return (blocks[0].total, *shape[1:]) if blocks else shape

    def local_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape on each rank of a tensor that has `shape` over all."""
        blocks = self.blocks(name)
        return (blocks[0].count, *shape[1:]) if blocks else shape

    def of_file(self, name: str) -> tuple[str, ExpertBlock] | None:
        """Return the weight, and the block of one expert, for `name` in an expert's file; None for
        others."""
        weight, _, number = name.rpartition(".")
        blocks = self.blocks(weight)
        if not blocks or not number.isdecimal() or int(number) >= blocks[0].total:
            return None
        return weight, ExpertBlock(int(number), 1, blocks[0].total)

    def routers(self, names: Iterable[str]) -> dict[str, str]:
        """Return the second names of a layer's router among `names` of a module."""
        known, found = set(names), {}
        for prefix in self.layers:
            layer = prefix.removesuffix("experts")
            for name in (each for each in known if each.startswith(layer)):
                _, _, weight = name.removeprefix(layer).partition(".")
                first = f"{layer}router.{weight}"
                if name != first and first in known:
                    found[name] = first
        return found


def stacked_experts_of(path: Path, layers: Any) -> StackedExperts:
    """Return the experts in the value of `ds_autoep_layers` of the model file `path`.

    Raises:
        BadFile: it does not say which rank has which experts, or contradicts itself.
        Unsupported: experts of a rank that do not follow one another.
    """
    if not layers:
        return StackedExperts()
    if not isinstance(layers, list) or not all(isinstance(each, Mapping) for each in layers):
        raise BadFile(f"{path}: ds_autoep_layers is not a list of layers: take another copy")
    return StackedExperts({_prefix(path, layer): _blocks(path, layer) for layer in layers})


def _prefix(path: Path, layer: Mapping[Any, Any]) -> str:
    prefix = layer.get(_PREFIX)
    if not isinstance(prefix, str):
        raise BadFile(f"{path}: ds_autoep_layers has a layer without {_PREFIX}: take another copy")
    return prefix


def _blocks(path: Path, layer: Mapping[Any, Any]) -> tuple[ExpertBlock, ...]:
    total, ranks = _count(path, layer, NUM_EXPERTS), _count(path, layer, _RANKS)
    placed = _placed(layer.get(_PLACEMENT))
    if placed is None:  # of DeepSpeed versions that know no other placement
        each = total // ranks
        placed = {rank: [*range(rank * each, (rank + 1) * each)] for rank in range(ranks)}
    if sorted(placed) != [*range(ranks)]:
        raise BadFile(
            f"{path}: the experts of {_prefix(path, layer)} are placed on ranks {sorted(placed)}, "
            f"and its {_RANKS} is {ranks}: take another copy"
        )
    if sorted(expert for own in placed.values() for expert in own) != [*range(total)]:
        raise BadFile(
            f"{path}: not each of the {total} experts of {_prefix(path, layer)} is on one "
            "expert-parallel rank: take another copy"
        )
    for own in placed.values():
        if len(own) != len(placed[0]) or any(b != a + 1 for a, b in pairwise(own)):
            raise Unsupported(
                f"{path}: an expert-parallel rank has experts {own} of {_prefix(path, layer)}. "
                "DeepSpeed 0.19.8 gives each rank the same number of consecutive experts, and "
                "zerotools reads only that: report it, with the version of DeepSpeed"
            )
    return tuple(ExpertBlock(placed[r][0], len(placed[r]), total) for r in range(ranks))


def _placed(placement: Any) -> dict[int, list[int]] | None:
    entries = placement.get("ranks") if isinstance(placement, Mapping) else None
    if not isinstance(entries, list):
        return None
    found: dict[int, list[int]] = {}
    for entry in entries:
        rank = entry.get("rank") if isinstance(entry, Mapping) else None
        own = entry.get("experts") if isinstance(entry, Mapping) else None
        if type(rank) is int and isinstance(own, list) and all(type(n) is int for n in own):
            found[rank] = own
    return found


def _count(path: Path, layer: Mapping[Any, Any], name: str) -> int:
    value = layer.get(name)
    if type(value) is not int or not 1 <= value <= _MOST_EXPERTS:
        raise BadFile(f"{path}: {name} of {_prefix(path, layer)} is {value!r:.40}, not a count")
    return value
