"""The communication of tensor ranks: of values that are whole on each, and of their parts.

The gradient of each function has the reverse communication: if a whole value enters a cut layer,
each rank computes a part of its gradient, and their sum is the gradient on every rank.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (the operators f and g).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist


def taken(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """Return `whole` for a cut layer: its gradients are summed over the ranks of `group`."""
    return cast(torch.Tensor, _Taken.apply(whole, group))


def summed(part: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum of the ranks' `part`, on each; `part` itself is overwritten."""
    return cast(torch.Tensor, _Summed.apply(part, group))


def gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the ranks' parts of the last dimension, joined, on each."""
    return cast(torch.Tensor, _Gathered.apply(part, group))


def split(whole: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's part of the last dimension."""
    return cast(torch.Tensor, _Split.apply(whole, group))


def counted_each(weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return `weight` with its gradient multiplied by `ranks`.

    This turns a mean over ranks, of which each has a part, into the sum.
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
    """Return the flat tensors of all ranks of `group`, of the same length, one after another."""
    found = part.new_empty(dist.get_world_size(group) * part.numel())
    # torch 2.13 has renamed it, and warns of the other name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(found, part, group=group)
    return found


def _own(whole: torch.Tensor, group: Any) -> torch.Tensor:
    part = whole.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
    return part.contiguous()
