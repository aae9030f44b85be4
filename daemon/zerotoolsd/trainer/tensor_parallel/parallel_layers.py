"""Layers that compute with this rank's part of their weights, and the communication between the
ranks.

A split weight is a DTensor over the tensor ranks, as FSDP2 expects it. The layers compute with the
rank's local tensor of this DTensor.

In the backward pass, each communication is reversed. For example, if an input that is not split
enters a split layer, each rank computes a part of the gradient of this input. Every rank needs the
sum of these parts.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (the operators f and g).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import (
    COLUMNS,
    GATHERED_COLUMNS,
    ROWS,
    SPLIT_ROWS,
    SUMMED,
    LayerCuts,
)


def cut_layers(model: nn.Module, cuts: LayerCuts, mesh: DeviceMesh) -> None:
    """Split the layers of `model`, which is on the meta device, as `cuts` says.

    `mesh` is the one-dimensional mesh of the tensor ranks.
    """
    for name, dimension in cuts.dimensions.items():
        above, _, last = name.rpartition(".")
        layer = model.get_submodule(above)
        layer._parameters[last] = _cut(layer.get_parameter(last), dimension, mesh)
    for name, cut in cuts.layers.items():
        layer = model.get_submodule(name)
        layer.forward = partial(_FORWARDS[cut], layer, mesh.get_group())


def _cut(parameter: nn.Parameter, dimension: int, mesh: DeviceMesh) -> nn.Parameter:
    shape = list(parameter.shape)
    shape[dimension] //= mesh.size()
    # Not a view, because FSDP needs contiguous tensors.
    own = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
    tensor = DTensor.from_local(
        own,
        mesh,
        [Shard(dimension)],
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def _columns(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return functional.linear(
        with_summed_gradient(whole, group), _local(layer.weight), _local(layer.bias)
    )


def _gathered_columns(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return all_gathered(_columns(layer, group, whole), group)


def _rows(layer: Any, group: Any, part: torch.Tensor) -> torch.Tensor:
    found = all_reduced(functional.linear(part, _local(layer.weight)), group)
    return found if layer.bias is None else found + layer.bias


def _split_rows(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return _rows(layer, group, split_by_rank(whole, group))


def _with_summed_gradients(layer: Any, group: Any, *args: Any, **options: Any) -> Any:
    ranks = torch.distributed.get_world_size(group)
    own = dict(layer._parameters)
    layer._parameters.update(
        {n: with_scaled_gradient(p, ranks) for n, p in own.items() if p is not None}
    )
    try:
        return type(layer).forward(layer, *args, **options)
    finally:
        layer._parameters.update(own)


_FORWARDS: Mapping[str, Callable[..., Any]] = {
    COLUMNS: _columns,
    GATHERED_COLUMNS: _gathered_columns,
    ROWS: _rows,
    SPLIT_ROWS: _split_rows,
    SUMMED: _with_summed_gradients,
}


def _local(weight: torch.Tensor | None) -> torch.Tensor | None:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def with_summed_gradient(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """Return `whole` unchanged, as the input of a split layer.

    In the backward pass, its gradients are summed over the ranks of `group`.
    """
    return cast(torch.Tensor, _Taken.apply(whole, group))


def all_reduced(part: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum of `part` over the ranks of `group`, on each of these ranks. `part` is
    overwritten.
    """
    return cast(torch.Tensor, _Summed.apply(part, group))


def all_gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    """Join `part` of all ranks of `group` along the last dimension, and return the result on each
    rank.
    """
    return cast(torch.Tensor, _Gathered.apply(part, group))


def split_by_rank(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's part of `whole` along the last dimension."""
    return cast(torch.Tensor, _Split.apply(whole, group))


def with_scaled_gradient(weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return `weight` unchanged.

    In the backward pass, its gradient is multiplied by `ranks`. If each rank has a part of the
    gradient, this turns the average over the ranks into the sum.
    """
    return cast(torch.Tensor, _CountedEach.apply(weight, ranks))


class _Taken(torch.autograd.Function):  # type: ignore[misc] # torch's types are not followed
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _sum(gradient.clone(memory_format=torch.contiguous_format), ctx.group), None


class _Summed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.mark_dirty(part)
        return _sum(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient, None


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _join(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _own(gradient, ctx.group), None


class _Split(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _own(whole, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _join(gradient, ctx.group), None


class _CountedEach(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.ranks = ranks
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient * ctx.ranks, None


def _sum(values: torch.Tensor, group: Any) -> torch.Tensor:
    dist.all_reduce(values, group=group)
    return values


def _join(part: torch.Tensor, group: Any) -> torch.Tensor:
    found = gather_flat(part.contiguous().view(-1), group)
    return found.view(dist.get_world_size(group), *part.shape).movedim(0, -2).flatten(-2)


def gather_flat(part: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the flat tensors `part` of all ranks of `group`, which have the same length, one after
    another.
    """
    found = part.new_empty(dist.get_world_size(group) * part.numel())
    # torch 2.13 has renamed it, and warns of the other name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(found, part, group=group)
    return found


def _own(whole: torch.Tensor, group: Any) -> torch.Tensor:
    part = whole.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
    return part.contiguous()
