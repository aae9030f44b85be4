"""The records of AutoEP's experts in files, and their change with the number of ranks.

    ds_autoep_layers[i]        the entry of a layer, which model files also have in
                               universal_checkpoint_info; the files of stage 3 each name their own
                               expert-parallel rank, the only one of stages 1 and 2 names the first
    ds_zero_partition_groups   in the optimizer files of stage 3: the ranks of each sub-group

Keys that a version of DeepSpeed did not write are not added.

Source: DeepSpeed 0.19.8 `runtime/engine.py`: `_save_moe_checkpoint`; `runtime/zero/stage3.py`:
`_zero3_partition_group_metadata`; `checkpoint/autoep_affine.py`, `checkpoint/affine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from zerotools.core.boxes import row_major_strides
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema.experts import ExpertPlacement
from zerotools.formats.deepspeed.schema.model_tree import TENSOR_PARALLEL_INFO
from zerotools.formats.deepspeed.schema.optimizer_tree import PARTITION_COUNT

EXPERT_PARALLEL, EXPERT_RANKS = "expert_parallel", "autoep_size"
"""The table of a configuration for AutoEP, and its key with the expert-parallel ranks."""
GROUP_NAME = "name"
_MAPS, _PARAMS = "affine_maps", "params"


def configured_ranks(config: Any) -> int | None:
    """Return the expert-parallel ranks of AutoEP in a configuration, or None if it is off."""
    table = config.get(EXPERT_PARALLEL) if isinstance(config, Mapping) else None
    if not isinstance(table, Mapping) or table.get("enabled") is not True:
        return None
    value = table.get(EXPERT_RANKS, 1)
    return value if type(value) is int and value > 0 else None


def group_name(ep_size: int) -> str:
    """Return the name of AutoEP's param group, and of its group of processes."""
    return f"ep_size_{ep_size}"


def model_tree_on(tree: Mapping[str, Any], placement: ExpertPlacement, rank: int) -> dict[str, Any]:
    """Return the tree of a model file as `rank` of `placement` writes it."""
    changed = dict(tree)
    for key in (model_tree.AUTOEP_LAYERS, model_tree.AUTOEP_LAYERS_BEFORE):
        if isinstance(changed.get(key), list):
            changed[key] = _layers_on(changed[key], placement, rank)
    known = changed.get(TENSOR_PARALLEL_INFO)
    if isinstance(known, Mapping) and isinstance(known.get(model_tree.AUTOEP_LAYERS), list):
        layers = _layers_on(known[model_tree.AUTOEP_LAYERS], placement, rank)
        changed[TENSOR_PARALLEL_INFO] = {**known, model_tree.AUTOEP_LAYERS: layers}
    return changed


def partition_groups_on(
    placements: Sequence[ExpertPlacement], are_experts: Sequence[bool], rank: int
) -> list[dict[str, Any]]:
    """Return `ds_zero_partition_groups` of the sub-groups, as `rank` writes it."""
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
    total, ranks = layer[model_tree.NUM_EXPERTS], placement.ep_size
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
    """Return the elements that a rank has of a weight of all experts: those of `each` experts."""
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
