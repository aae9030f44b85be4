"""Makes the gradients for the optimizer from those of the backward pass.

The norm is over all ranks: squares of this rank's part in fp32, tensor by tensor, summed in fp64.
It is that of the scaled gradients of fp16 training; scaling and clipping are one factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.engine_torch.partition import RowPartition
from zerotoolsd.trainer.model.sharding import cutting_groups

ROUNDING = 1e-6
"""The constant that torch's clip_grad_norm_ adds to the norm."""


@dataclass(frozen=True)
class Reduction:
    """Sums over the ranks among which tensors are cut; `device` is the device of their groups."""

    groups: Sequence[Any]
    device: torch.device

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over all of these ranks; `values` itself for one rank."""
        if not self.groups:
            return values
        total = values.to(self.device)
        for group in self.groups:
            dist.all_reduce(total, group=group)
        return total.to(values.device)


class UpdatePath(Protocol):
    """The path of gradients to the optimizer's `weights`, and of updates back to the model.

    Between two backward passes: `norm`, then either `discard`, or `fetch` and `store` of each of
    `buckets` in order and then `finish`. All ranks call each together.
    """

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """The tensors that the optimizer updates, by name."""

    @property
    def reduction(self) -> Reduction:
        """Sums over the ranks among which the weights are cut."""

    def buckets(self) -> list[list[str]]:
        """Return the names of weights that are updated together; each name occurs once."""

    def received(self) -> list[str]:
        """Return the names of the weights that have gradients from the backward passes."""

    def forget(self, names: Iterable[str]) -> None:
        """Free the gradients of these weights, which are not updated."""

    def norm(self) -> torch.Tensor:
        """Return the global norm of the gradients, an fp64 scalar that the host has not waited for.

        It is not finite if any gradient is not.
        """

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Give these weights their gradients, times `factor`."""

    def store(self, names: Iterable[str]) -> None:
        """Free these gradients, and start to copy the updated weights to the model."""

    def finish(self) -> None:
        """Complete the update: every rank's model has all updated weights."""

    def discard(self) -> None:
        """Free all gradients."""


class InPlaceUpdate:
    """Lets the optimizer update the model's parameters directly."""

    def __init__(self, weights: Mapping[str, nn.Parameter], device: torch.device) -> None:
        self.weights = weights
        self.reduction = reduction_of(weights, device)

    def buckets(self) -> list[list[str]]:
        """Return one bucket; see `UpdatePath.buckets`."""
        return [list(self.weights)]

    def received(self) -> list[str]:
        """Return the names; see `UpdatePath.received`."""
        return _with_gradients(self.weights)

    def forget(self, names: Iterable[str]) -> None:
        """Free gradients; see `UpdatePath.forget`."""
        self.store(names)

    def norm(self) -> torch.Tensor:
        """Return the norm; see `UpdatePath.norm`."""
        return total_norm(_gradients(self.weights.values()), self.reduction)

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Scale the gradients, which the weights already have; see `UpdatePath.fetch`."""
        _multiply(_gradients(self.weights[name] for name in names), factor)

    def store(self, names: Iterable[str]) -> None:
        """Free gradients; see `UpdatePath.store`."""
        for name in names:
            self.weights[name].grad = None

    def finish(self) -> None:
        """Do nothing: the model has the updated weights."""

    def discard(self) -> None:
        """Free all gradients; see `UpdatePath.discard`."""
        self.store(self.weights)


class PartitionedUpdate:
    """ZeRO-1 in fp32: the optimizer updates its rows of parameters that every rank has whole."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], partition: RowPartition) -> None:
        self._parameters = parameters
        self._partition = partition
        self.weights = partition.rows
        device = next(iter(parameters.values())).device
        self.reduction = reduction_of(self.weights, device)

    def buckets(self) -> list[list[str]]:
        """Return one bucket; see `UpdatePath.buckets`."""
        return [list(self.weights)]

    def received(self) -> list[str]:
        """Return the names; see `UpdatePath.received`."""
        return _with_gradients(self._parameters)

    def forget(self, names: Iterable[str]) -> None:
        """Free gradients; see `UpdatePath.forget`."""
        self.store(names)

    def norm(self) -> torch.Tensor:
        """Return the norm of the rows, so that it equals that of stages 2 and 3 bit for bit."""
        rows = map(self._partition.rows_of, _gradients(self._parameters.values()))
        return total_norm(rows, self.reduction)

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Take and scale the rows' gradients; see `UpdatePath.fetch`."""
        self._partition.take_gradients()
        _multiply(_gradients(self.weights[name] for name in names), factor)

    def store(self, names: Iterable[str]) -> None:
        """Free gradients; see `UpdatePath.store`."""
        for name in names:
            self.weights[name].grad = self._parameters[name].grad = None

    def finish(self) -> None:
        """Share the updated rows; see `UpdatePath.finish`."""
        self._partition.share()

    def discard(self) -> None:
        """Free all gradients; see `UpdatePath.discard`."""
        self.store(self.weights)


def reduction_of(weights: Mapping[str, torch.Tensor], device: torch.device) -> Reduction:
    """Return the sums over the ranks among which all `weights` are cut alike."""
    first = next(iter(weights.values()), None)
    return Reduction([] if first is None else cutting_groups(first), device)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `tensor`."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def local_norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the norm of this rank's part of a gradient, a scalar on its device."""
    return torch.linalg.vector_norm(local(gradient).detach(), dtype=torch.float32)


def total_norm(gradients: Iterable[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Return the global norm of `gradients`."""
    return joined_norm([local_norm(gradient) for gradient in gradients], reduction)


def joined_norm(norms: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Return the global norm of tensors from this rank's `norms` of them."""
    squares = torch.zeros((), dtype=torch.float64)
    if norms:
        squares = torch.stack(list(norms)).double().square().sum()
    return reduction.sum(squares).sqrt()


def clipping(norm: float, max_norm: float) -> float:
    """Return the clipping factor for gradients of `norm`; 1 for `max_norm` 0."""
    return min(1.0, max_norm / (norm + ROUNDING)) if max_norm else 1.0


def _with_gradients(weights: Mapping[str, nn.Parameter]) -> list[str]:
    return [name for name, weight in weights.items() if weight.grad is not None]


def _gradients(weights: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _multiply(gradients: Sequence[torch.Tensor], factor: float) -> None:
    if factor != 1.0 and gradients:
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)
