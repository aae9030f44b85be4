"""Adafactor for weights with rows that are split among ranks. It uses torch's update rule, and its
result is the same for any number of ranks.

torch's Adafactor expects whole tensors, because it computes averages over a whole tensor: over
columns, over row statistics, and over the squares of the elements and of the update. Here each rank
sums over its own rows, and these sums are added over the ranks. Row statistics are split like the
tensor. Column statistics of a matrix are complete on every rank.

Source of the rule: torch/optim/_adafactor.py, with its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerotools.core.training_memory_layout import MOMENTS
from zerotoolsd.trainer.allocate_tensors import MemoryTier
from zerotoolsd.trainer.engine_torch.reduce_and_update import Reduction, local_tensor
from zerotoolsd.trainer.model.sharding import wrap_local

BETA2_DECAY = -0.8
MIN_SCALE = 1e-3
CLIPPING = 1.0
FLOOR = torch.finfo(torch.float32).eps


class Adafactor(torch.optim.Optimizer):  # type: ignore[misc] # torch's types are not followed
    """An optimizer that updates this rank's rows of fp32 weights according to Adafactor's rule."""

    def __init__(self, groups: list[dict[str, Any]], reduction: Reduction, *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self._reduction = reduction

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the weights that have gradients.

        All ranks call it together. The gradients are overwritten by the updates. For any number of
        weights, a step needs two sums over the ranks, and the host waits for the device once.
        """
        with torch.no_grad():
            weights = [
                (weight, group)
                for group in self.param_groups
                for weight in group["params"]
                if weight.grad is not None
            ]
            if weights:
                self._update(weights)

    def _update(self, weights: Sequence[tuple[torch.Tensor, dict[str, Any]]]) -> None:
        states = [self.state[weight] for weight, _ in weights]
        for state in states:
            state["step"] += 1
        steps = [float(state["step"]) for state in states]
        betas = [step**BETA2_DECAY for step in steps]
        sums = self._matrix_sums([weight for weight, _ in weights], betas)
        squares = [_squares(local_tensor(weight)) for weight, _ in weights]
        for (weight, _), state, beta, of_matrix in zip(weights, states, betas, sums, strict=True):
            estimate = _estimate(weight, state, beta, of_matrix)
            local_tensor(weight.grad).mul_(estimate.clamp_(min=FLOOR * FLOOR).rsqrt_())
        squares += [_squares(local_tensor(weight.grad)) for weight, _ in weights]
        numbers = self._reduction.sum(torch.stack(squares)).tolist()
        of_updates = numbers[len(weights) :]
        for (weight, group), step, square, of_update in zip(
            weights, steps, numbers, of_updates, strict=False
        ):
            lr, count = group["lr"], weight.numel()
            rate = max(MIN_SCALE, math.sqrt(square / count)) * min(lr, 1 / math.sqrt(step))
            clip = max(1.0, math.sqrt(of_update) / (math.sqrt(count) * CLIPPING))
            values = local_tensor(weight)
            values.mul_(1 - lr * group["weight_decay"])
            values.add_(local_tensor(weight.grad), alpha=-rate / clip)

    def _matrix_sums(
        self, weights: Sequence[torch.Tensor], betas: Sequence[float]
    ) -> list[torch.Tensor | None]:
        """Update the row statistics, and return a vector of sums for each matrix; None for other
        weights.

        The sums are over all rows of the matrix, on all ranks. The vector has the sum of the
        squared gradients of each column and, as the last element, the sum of the row statistics.
        """
        mine = []
        for weight, beta in zip(weights, betas, strict=True):
            if weight.dim() < 2:
                continue
            squared = local_tensor(weight.grad).square()
            row_var = local_tensor(self.state[weight]["row_var"])
            row_var.lerp_(squared.mean(dim=-1, keepdim=True), beta)
            if weight.dim() == 2:
                mine.append(torch.cat([squared.sum(dim=0), row_var.sum().view(1)]))
            else:  # cut between matrices, each of which is on one rank
                col_var = local_tensor(self.state[weight]["col_var"])
                col_var.lerp_(squared.mean(dim=-2, keepdim=True), beta)
        lengths = [len(each) for each in mine]
        summed = iter(self._reduction.sum(torch.cat(mine)).split(lengths) if mine else ())
        return [next(summed) if weight.dim() == 2 else None for weight in weights]


def _estimate(
    weight: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    beta: float,
    sums: torch.Tensor | None,
) -> torch.Tensor:
    """Update the statistics of `weight` that `_matrix_sums` does not update. Return the estimate of
    its squared gradients.

    `sums` is the result of `_matrix_sums` for this weight.
    """
    if weight.dim() < 2:
        variance = local_tensor(state["variance"])
        variance.lerp_(local_tensor(weight.grad).square(), beta)
        return variance.clone()
    row_var, col_var = local_tensor(state["row_var"]), local_tensor(state["col_var"])
    if sums is None:
        mean = row_var.mean(dim=-2, keepdim=True)
    else:
        col_var.lerp_((sums[:-1] / weight.shape[0]).view(1, -1), beta)
        mean = (sums[-1] / weight.shape[0]).view(1, 1)
    return (row_var * col_var).div_(mean.clamp_(min=FLOOR))


def first_state(weight: nn.Parameter, tier: MemoryTier) -> dict[str, torch.Tensor]:
    """Return the optimizer state of `weight` before the first step, in the memory tier `tier`."""
    rows = local_tensor(weight)
    state = {"step": torch.zeros((), dtype=torch.float32)}
    if weight.dim() < 2:
        state["variance"] = _zeros(weight, rows.shape, weight.shape, tier)
        return state
    state["row_var"] = _zeros(weight, (*rows.shape[:-1], 1), (*weight.shape[:-1], 1), tier)
    if weight.dim() == 2:
        state["col_var"] = tier.zeros((1, weight.shape[1]), torch.float32, MOMENTS)
        return state
    part = (*rows.shape[:-2], 1, rows.shape[-1])
    whole = (*weight.shape[:-2], 1, weight.shape[-1])
    state["col_var"] = _zeros(weight, part, whole, tier)
    return state


def _zeros(
    weight: torch.Tensor, part: tuple[int, ...], whole: tuple[int, ...], tier: MemoryTier
) -> torch.Tensor:
    memory = tier.zeros(part, torch.float32, MOMENTS)
    if not isinstance(weight, DTensor):
        return memory
    return wrap_local(memory, weight.device_mesh, weight.placements, whole)


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32).double().square()
