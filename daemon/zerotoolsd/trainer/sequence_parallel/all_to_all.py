"""Exchanges tensors between sequence ranks, and sums tensors over them, with gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Exchange(Protocol):
    """The interface between the ranks that compute the same sequences.

    This is rank `index` of `ranks`. All of these ranks call each method together.
    """

    @property
    def index(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def swap(self, blocks: torch.Tensor) -> torch.Tensor:
        """Send block r of `blocks`, contiguous `[ranks, ...]`, to rank r.

        Return the blocks that were received. Block r of the result comes from rank r.
        """

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the `values` of all ranks."""


@dataclass(frozen=True)
class GroupExchange:
    """Implements `Exchange` with a process group."""

    group: dist.ProcessGroup
    index: int
    ranks: int

    def swap(self, blocks: torch.Tensor) -> torch.Tensor:
        found = torch.empty_like(blocks)
        dist.all_to_all_single(found, blocks, group=self.group)
        return found

    def total(self, values: torch.Tensor) -> torch.Tensor:
        found = values.clone()
        dist.all_reduce(found, group=self.group)
        return found


def swapped_blocks(blocks: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Exchange blocks as `Exchange.swap` does. The backward pass sends the gradients back."""
    found: torch.Tensor = _Swap.apply(blocks, exchange)
    return found


def sum_over_ranks(values: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Return the sum of the `values` of all ranks, with a gradient.

    All ranks compute the same result from the sum, and this result counts only once. So each rank's
    `values` have the same gradient as the sum.
    """
    found: torch.Tensor = _Total.apply(values, exchange)
    return found


class _Swap(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, blocks: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange.swap(blocks.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange.swap(gradient.contiguous()), None


class _Total(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        return exchange.total(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
