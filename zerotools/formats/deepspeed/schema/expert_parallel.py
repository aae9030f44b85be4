"""Describe the experts on expert-parallel ranks, and AutoEP's experts, which are stacked.

AutoEP has one tensor for each weight of a layer, and each expert-parallel rank has a block of it:

    ds_autoep_layers: [{expert_key_prefix: "model.layers.0.mlp.experts", num_experts: 4, ep_size: 2,
                        expert_placement: {ranks: [{rank: 0, experts: [0, 1]}, ...]}}]
    model.layers.0.mlp.experts.w1            shape (2, ...) on each rank, (4, ...) over all ranks
    model.layers.0.mlp.experts.w1.3          expert 3 in its file, without the first axis
    model.layers.0.mlp.router.gate.weight    the router
    model.layers.0.mlp.gate.gate.weight      the same router, under the name for transformers' hooks

Source: DeepSpeed 0.19.8 `runtime/engine.py`: `_save_moe_checkpoint`; `checkpoint/autoep_affine.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.boxes import row_major_strides
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.state_dict_keys import (
    NUM_EXPERTS,
    PARTITION_COUNT,
    TENSOR_PARALLEL_INFO,
)

_PREFIX, _RANKS = "expert_key_prefix", "ep_size"
_PLACEMENT = "expert_placement"
_MOST_EXPERTS = 2**16


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """A block of consecutive experts along the first axis: experts [first, first + count) of
    `total`.
    """

    first: int
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """The stacked experts of AutoEP. `layers` maps the name prefix of each layer's experts to one
    block for each expert-parallel rank.
    """

    layers: Mapping[str, tuple[ExpertBlock, ...]] = field(default_factory=dict)

    @property
    def ep_size(self) -> int | None:
        """The number of expert-parallel ranks, which is the same for all layers; None if there are
        no layers."""
        return next((len(blocks) for blocks in self.layers.values()), None)

    def blocks(self, name: str) -> tuple[ExpertBlock, ...]:
        """Return one block for each expert-parallel rank if `name` is a weight of experts; else an
        empty tuple.
        """
        return self.layers.get(name.rpartition(".")[0], ())

    def whole_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor with all experts, from the shape that the tensor has on
        each rank.
        """
        blocks = self.blocks(name)
        return (blocks[0].total, *shape[1:]) if blocks else shape

    def local_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a tensor has on each rank, from its shape with all experts."""
        blocks = self.blocks(name)
        return (blocks[0].count, *shape[1:]) if blocks else shape

    def of_file(self, name: str) -> tuple[str, ExpertBlock] | None:
        """Return the stacked weight that contains the tensor `name` of an expert file, and the
        block with this expert; None for other names.
        """
        weight, _, number = name.rpartition(".")
        blocks = self.blocks(weight)
        if not blocks or not number.isdecimal() or int(number) >= blocks[0].total:
            return None
        return weight, ExpertBlock(int(number), 1, blocks[0].total)

    def routers(self, names: Iterable[str]) -> dict[str, str]:
        """Return {second name: first name} for each router in `names` that has two names
        (`mlp.gate.gate.weight` is a second name).
        """
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
    """Return AutoEP's experts. `layers` is the value of `ds_autoep_layers` in the model file
    `path`.

    Raises:
        BadFile: the value does not say which rank has which experts, or contradicts itself.
        Unsupported: the experts of a rank are not consecutive.
    """
    if not layers:
        return StackedExperts()
    if not isinstance(layers, list) or not all(isinstance(each, Mapping) for each in layers):
        raise BadFile(
            f"{path}: ds_autoep_layers is not a list of layers: the file is damaged; copy or "
            "download it again"
        )
    return StackedExperts({_prefix(path, layer): _blocks(path, layer) for layer in layers})


def _prefix(path: Path, layer: Mapping[Any, Any]) -> str:
    prefix = layer.get(_PREFIX)
    if not isinstance(prefix, str):
        raise BadFile(
            f"{path}: a layer in ds_autoep_layers has no {_PREFIX}: the file is damaged; copy "
            "or download it again"
        )
    return prefix


def _blocks(path: Path, layer: Mapping[Any, Any]) -> tuple[ExpertBlock, ...]:
    total, ranks = _count(path, layer, NUM_EXPERTS), _count(path, layer, _RANKS)
    placed = _placed(layer.get(_PLACEMENT))
    if placed is None:  # saved by a version with only this placement
        each = total // ranks
        placed = {rank: [*range(rank * each, (rank + 1) * each)] for rank in range(ranks)}
    if sorted(placed) != [*range(ranks)]:
        raise BadFile(
            f"{path}: the experts of {_prefix(path, layer)} are on the ranks {sorted(placed)}, "
            f"but its {_RANKS} is {ranks}: the file is damaged; copy or download it again"
        )
    if sorted(expert for own in placed.values() for expert in own) != [*range(total)]:
        raise BadFile(
            f"{path}: each of the {total} experts of {_prefix(path, layer)} must be on one "
            "expert-parallel rank, but is not: the file is damaged; copy or download it again"
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
        raise BadFile(
            f"{path}: {name} of {_prefix(path, layer)} is {value!r:.40}, but must be a whole "
            f"number from 1 to {_MOST_EXPERTS}"
        )
    return value


EXPERTS = "deepspeed_experts."
DATA_FIRST = "use_data_before_expert_parallelism"
_EXPERT = re.compile(r"(?P<layer>.*?deepspeed_experts\.)(?P<number>\d+)(?P<rest>\..*)")


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """The placement of `dp_size` data-parallel ranks on `ep_size` expert-parallel ranks.

    In each layer, all expert-parallel ranks have the same number of experts. Data-parallel ranks
    with the same experts share the partitions of these experts. Consecutive ranks have different
    experts or, with `data_first`, the same experts. For parameters that all ranks share, `ep_size`
    is 1.

    Optimizer files and `param_shapes` use the number of an expert on its rank. Expert files use its
    number over all ranks.

    Source: DeepSpeed `utils/groups.py`: `_create_expert_and_data_parallel`; `runtime/engine.py`:
    `_save_moe_checkpoint`.
    """

    dp_size: int
    ep_size: int = 1
    data_first: bool = False

    @property
    def expert_dp_size(self) -> int:
        """The number of data-parallel ranks that have the same experts."""
        return self.dp_size // self.ep_size

    def of(self, rank: int) -> tuple[int, int]:
        """Return the expert-parallel rank of the data-parallel rank `rank`, and the number of its
        partition among the ranks that have the same experts.
        """
        if self.data_first:
            return rank // self.expert_dp_size, rank % self.expert_dp_size
        return rank % self.ep_size, rank // self.ep_size

    def ranks_of(self, expert_rank: int) -> range:
        """Return the data-parallel ranks that hold the experts of one expert-parallel rank, in the
        order of their partitions.
        """
        if self.data_first:
            return range(expert_rank * self.expert_dp_size, (expert_rank + 1) * self.expert_dp_size)
        return range(expert_rank, self.dp_size, self.ep_size)


@dataclass(frozen=True, slots=True)
class ExpertNaming:
    """Converts the name of an expert on one rank to its name over all ranks.

    Attributes:
        local, total: layer -> the number of experts on one rank, and on all ranks together, as far
            as names show these numbers. The numbers may differ between layers.
        stacked: AutoEP's experts, which have one name for all experts of a layer.
    """

    local: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    data_first: bool = False
    stacked: StackedExperts = field(default_factory=StackedExperts)

    @classmethod
    def of(
        cls,
        local: Iterable[str],
        global_name: Iterable[str],
        config: Any,
        stacked: StackedExperts | None = None,
    ) -> ExpertNaming:
        """Derive the naming from the names of the experts on one rank (`local`), their names over
        all ranks (`global_name`), and the configuration.
        """
        counts = _counts(local), _counts(global_name)
        return cls(*counts, is_data_first(config), stacked or StackedExperts())

    def global_name(self, name: str, expert_rank: int, ep_size: int) -> str:
        """Return the name over all ranks of a parameter that is called `name` on expert-parallel
        rank `expert_rank`.
        """
        match = _EXPERT.fullmatch(name)
        if match is None:
            return name
        layer = match["layer"]
        # Both counts may be too low: frozen experts are in no partition, and files may be lost.
        each = max(self.local.get(layer, 0), -(-self.total.get(layer, 0) // ep_size))
        return f"{layer}{expert_rank * each + int(match['number'])}{match['rest']}"


def is_expert(name: str) -> bool:
    """Return whether `name` is the name of an expert's parameter."""
    return _EXPERT.fullmatch(name) is not None


def experts_of_first_rank(names: Iterable[str], ep_size: int) -> list[str]:
    """Return the names, in order, of the experts on expert-parallel rank 0. `names` are the names
    of the experts of all ranks.
    """
    every = [match for name in names if (match := _EXPERT.fullmatch(name))]
    total = _counts(match[0] for match in every)
    return [m[0] for m in every if int(m["number"]) * ep_size < total[m["layer"]]]


def same_weight(name: str, other: str) -> bool:
    """Return whether two names belong to the same weight of two experts in one layer."""
    one, two = _EXPERT.fullmatch(name), _EXPERT.fullmatch(other)
    if one is None or two is None:
        return False
    return (one["layer"], one["rest"]) == (two["layer"], two["rest"])


def is_data_first(config: Any) -> bool:
    """Return whether consecutive ranks have the same experts in a run with this configuration."""
    return isinstance(config, Mapping) and config.get(DATA_FIRST) is True


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        if match := _EXPERT.fullmatch(name):
            known = counts.get(match["layer"], 0)
            counts[match["layer"]] = max(known, 1 + int(match["number"]))
    return counts


EXPERT_PARALLEL, EXPERT_RANKS = "expert_parallel", "autoep_size"
"""The configuration table of AutoEP, and its key for the number of expert-parallel ranks."""
GROUP_NAME = "name"
_MAPS, _PARAMS = "affine_maps", "params"


def configured_ranks(config: Any) -> int | None:
    """Return the number of expert-parallel ranks that a configuration sets for AutoEP; None if
    AutoEP is off.
    """
    table = config.get(EXPERT_PARALLEL) if isinstance(config, Mapping) else None
    if not isinstance(table, Mapping) or table.get("enabled") is not True:
        return None
    value = table.get(EXPERT_RANKS, 1)
    return value if type(value) is int and value > 0 else None


def group_name(ep_size: int) -> str:
    """Return the name that AutoEP gives to the param group and the process group of the experts."""
    return f"ep_size_{ep_size}"


def model_tree_on(tree: Mapping[str, Any], placement: ExpertPlacement, rank: int) -> dict[str, Any]:
    """Return the contents of the model file of rank `rank`: `tree`, with only the experts that
    `placement` gives to this rank.

    DeepSpeed's files record AutoEP's experts under two keys:

        ds_autoep_layers           in model files: one entry for each layer, which names an
                                   expert-parallel rank. The entries are also in
                                   universal_checkpoint_info
        ds_zero_partition_groups   in optimizer files of stage 3: the ranks that share each
                                   sub-group (`partition_groups_on`)

    At stage 3, each model file names the expert-parallel rank that it belongs to. At stages 1 and
    2, the only model file names the first one. A key that `tree` lacks is not added, because the
    version of DeepSpeed did not write it.

    Source: DeepSpeed 0.19.8 `runtime/engine.py`: `_save_moe_checkpoint`; `runtime/zero/stage3.py`:
    `_zero3_partition_group_metadata`; `checkpoint/autoep_affine.py`, `checkpoint/affine.py`.
    """
    changed = dict(tree)
    for key in (state_dict_keys.AUTOEP_LAYERS, state_dict_keys.AUTOEP_LAYERS_BEFORE):
        if isinstance(changed.get(key), list):
            changed[key] = _layers_on(changed[key], placement, rank)
    known = changed.get(TENSOR_PARALLEL_INFO)
    if isinstance(known, Mapping) and isinstance(known.get(state_dict_keys.AUTOEP_LAYERS), list):
        layers = _layers_on(known[state_dict_keys.AUTOEP_LAYERS], placement, rank)
        changed[TENSOR_PARALLEL_INFO] = {**known, state_dict_keys.AUTOEP_LAYERS: layers}
    return changed


def partition_groups_on(
    placements: Sequence[ExpertPlacement], are_experts: Sequence[bool], rank: int
) -> list[dict[str, Any]]:
    """Return the value of `ds_zero_partition_groups` in the file of rank `rank`: the ranks that
    share each sub-group.
    """
    found = []
    for number, (placement, is_experts) in enumerate(zip(placements, are_experts, strict=True)):
        expert_rank, part = placement.of(rank)
        found.append(
            {
                "sub_group": number,
                PARTITION_COUNT: placement.expert_dp_size,
                "partition_rank": part,
                "partition_ranks": list(placement.ranks_of(expert_rank)),
                "families": ["autoep_expert" if is_experts else "replicated"],
                "group_names": [group_name(placement.ep_size) if is_experts else "replicated"],
            }
        )
    return found


def _layers_on(layers: Sequence[Any], placement: ExpertPlacement, rank: int) -> list[Any]:
    return [
        {**layer, **_entry(layer, placement, rank)} if isinstance(layer, Mapping) else layer
        for layer in layers
    ]


def _entry(layer: Mapping[str, Any], placement: ExpertPlacement, rank: int) -> dict[str, Any]:
    total, ranks = layer[state_dict_keys.NUM_EXPERTS], placement.ep_size
    each = total // ranks
    expert_rank, part = placement.of(rank)
    placed = [
        {"rank": number, "experts": [*range(number * each, (number + 1) * each)]}
        for number in range(ranks)
    ]
    known = layer.get("expert_placement")
    values = {
        "num_local_experts": each,
        "ep_size": ranks,
        "expert_placement": {
            **(known if isinstance(known, Mapping) else {}), "ep_size": ranks, "ranks": placed
        },
        _MAPS: _maps_on(layer.get(_MAPS), each, ranks),
        "ep_group_name": group_name(ranks),
        "ep_rank": expert_rank,
        "expert_data_parallel_rank": part,
        "expert_data_parallel_world_size": placement.expert_dp_size,
        "global_expert_start": expert_rank * each,
        "global_expert_end": (expert_rank + 1) * each,
    }  # fmt: skip
    return {key: value for key, value in values.items() if key in layer}


def _maps_on(maps: Any, each: int, ranks: int) -> Any:
    """Return the affine maps of the experts' weights, changed for a rank with `each` experts. A map
    says which elements of a stacked weight the rank has.
    """
    params = maps.get(_PARAMS) if isinstance(maps, Mapping) else None
    if not isinstance(params, Mapping):
        return maps
    return {**maps, _PARAMS: {name: _map_on(one, each, ranks) for name, one in params.items()}}


def _map_on(one: Any, each: int, ranks: int) -> Any:
    whole = one.get("logical_shape") if isinstance(one, Mapping) else None
    if not isinstance(whole, list) or not all(type(size) is int for size in whole):
        return one
    expert = tuple(whole[1:])
    shape = [each, *expert]
    strides = list(row_major_strides(tuple(shape)))
    placed = {
        number: {
            "shard_shape": shape,
            "pieces": [
                {
                    "shape": shape,
                    "source": [number * each * prod(expert), strides],
                    "dest": [0, strides],
                    "locations": [number],
                }
            ],
        }
        for number in range(ranks)
    }
    return {**one, "ranks": placed}
