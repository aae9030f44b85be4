"""FSDP2 over the ranks: which mesh, which groups, and where the shards' memory comes from.

Stages 2 and 3 shard the weights; stage 2 keeps them whole from the forward pass to the end of the
backward pass and saves a second gathering. Stages 0 and 1 replicate them through the same code, so
that every stage has the same precision rules and names: a checkpoint of one loads into the other.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zerotoolsd.trainer.blueprint import Blueprint

REPLICATE, SHARD = "replicate", "shard"
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_mesh(device: torch.device, world_size: int, stage: int) -> DeviceMesh:
    """All ranks in one dimension that shards, or in one that replicates (stages 0 and 1)."""
    if stage < 2:
        names = (REPLICATE, SHARD)
        return init_device_mesh(device.type, (world_size, 1), mesh_dim_names=names)
    return init_device_mesh(device.type, (world_size,), mesh_dim_names=(SHARD,))


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether every rank holds all of it, however many ranks there are."""
    return not isinstance(tensor, DTensor) or any(cut.is_replicate() for cut in tensor.placements)


def shard(
    blueprint: Blueprint, device: torch.device, world_size: int, *, stage: int, precision: str
) -> Any:
    """A copy of the blueprint's model, each parameter a DTensor whose local part has memory.

    The memory is not initialised. Buffers are not sharded; tied parameters stay one parameter.
    """
    model = copy.deepcopy(blueprint.model)
    mesh = make_mesh(device, world_size, stage)
    policy = MixedPrecisionPolicy()
    if precision in HALVES:
        policy = MixedPrecisionPolicy(param_dtype=HALVES[precision], reduce_dtype=torch.float32)
    for name in blueprint.blocks:
        block = model.get_submodule(name)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=stage == 3)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=stage == 3)
    _allocate(model, device)
    return model


def local_part(tensor: DTensor) -> tuple[torch.Tensor, tuple[slice, ...]]:
    """This rank's memory of `tensor`, and the box of the whole tensor that it holds."""
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    box = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    return tensor.to_local(), box


def _allocate(model: nn.Module, device: torch.device) -> None:
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                made[parameter] = _with_memory(parameter, device)
            setattr(module, name, made[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty_like(buffer, device=device)


def _with_memory(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    assert isinstance(parameter, DTensor)
    tensor = DTensor.from_local(
        torch.empty_like(parameter.to_local(), device=device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)
