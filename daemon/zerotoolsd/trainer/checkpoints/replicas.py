"""The choice of the rank that saves a tensor held by several ranks: each replica once, spread over
the ranks.

torch's DCP does the same in its planning, when all ranks have offered everything. Here it is known
in advance, so that a rank copies to the host only the tensors that it will write.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.rank.settings import Rank

TensorTree = dict[str, dict[str, torch.Tensor]]


def own_part(tree: TensorTree, rank: Rank) -> TensorTree:
    """Return `tree` without tensors that another rank writes; the choice is the same on all ranks.

    If ranks hold equal shards (a mesh that replicates and shards), one of them writes each.
    """
    loads: dict[int, list[int]] = {}
    return {
        top: {name: tensor for name, tensor in branch.items() if _is_writer(tensor, rank, loads)}
        for top, branch in tree.items()
    }


def _is_writer(tensor: torch.Tensor, rank: Rank, loads: dict[int, list[int]]) -> bool:
    replica, replicas = _place(tensor, rank)
    if replicas == 1:
        return True
    load = loads.setdefault(replicas, [0] * replicas)
    writer = load.index(min(load))
    load[writer] += tensor.numel() * tensor.itemsize
    return replica == writer


def _place(tensor: torch.Tensor, rank: Rank) -> tuple[int, int]:
    """Return the number of this rank's replica, and how many replicas exist."""
    if not isinstance(tensor, DTensor):
        return rank.index, rank.world_size
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    replica, replicas = 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            replica = replica * mesh.size(dimension) + coordinate[dimension]
            replicas *= mesh.size(dimension)
    return replica, replicas
