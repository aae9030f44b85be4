"""Adafactor over rows that are cut among ranks: torch's update rule, the same at every number.

torch's own takes each tensor to be whole. Here the means over a whole tensor (its columns, the sum
of its row statistics, its norm and that of its update) are sums over this rank's rows, added up
over the ranks among which it is cut. Rows' statistics are cut as the tensor is; those of the
columns of a matrix are whole on every rank.

Source of the rule: torch/optim/_adafactor.py, with its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerotools.core.memory_layout import MOMENTS
from zerotoolsd.trainer.engine_torch.gradients import Reduction, local
from zerotoolsd.trainer.memory.tiers import MemoryTier
from zerotoolsd.trainer.model.sharding import wrap

BETA2_DECAY = -0.8
MIN_SCALE = 1e-3
CLIPPING = 1.0
FLOOR = torch.finfo(torch.float32).eps


class Adafactor(torch.optim.Optimizer):  # type: ignore[misc] # torch's types are not followed
    """One optimizer of fp32 weights, of which this rank has rows."""

    def __init__(self, groups: list[dict[str, Any]], reduction: Reduction, *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self._reduction = reduction

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the weights that have gradients; all ranks call it together."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, group["lr"], group["weight_decay"])

    def _update(self, weight: torch.Tensor, lr: float, decay: float) -> None:
        state = self.state[weight]
        state["step"] += 1
        step = float(state["step"])
        values, gradient = local(weight), local(weight.grad)
        count = weight.numel()
        beta = step**BETA2_DECAY
        estimate, squares = self._estimate(weight, gradient, state, beta, values)
        scale = max(MIN_SCALE, math.sqrt(squares / count))
        rate = scale * min(lr, 1 / math.sqrt(step))
        update = estimate.clamp_(min=FLOOR * FLOOR).rsqrt_().mul_(gradient)
        length = math.sqrt(float(self._reduction.sum(_squares(update))))
        values.mul_(1 - lr * decay)
        values.add_(update, alpha=-rate / max(1.0, length / (math.sqrt(count) * CLIPPING)))

    def _estimate(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        beta: float,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, float]:
        """The estimate of the squared gradients, and the sum of the weight's squares."""
        if weight.dim() < 2:
            variance = local(state["variance"])
            variance.lerp_(gradient.square(), beta)
            return variance.clone(), float(self._reduction.sum(_squares(values)))
        row_var, col_var = local(state["row_var"]), local(state["col_var"])
        squared = gradient.square()
        row_var.lerp_(squared.mean(dim=-1, keepdim=True), beta)
        if weight.dim() > 2:  # cut between matrices, each of which a rank has whole
            col_var.lerp_(squared.mean(dim=-2, keepdim=True), beta)
            mean = row_var.mean(dim=-2, keepdim=True)
            total = self._reduction.sum(_squares(values))
        else:
            columns = squared.sum(dim=0)
            one = [columns, row_var.sum().view(1), _squares(values).float().view(1)]
            sums = self._reduction.sum(torch.cat(one))
            rows = weight.shape[0]
            col_var.lerp_((sums[:-2] / rows).view(1, -1), beta)
            mean, total = (sums[-2] / rows).view(1, 1), sums[-1]
        estimate = row_var * col_var
        estimate.div_(mean.clamp_(min=FLOOR))
        return estimate, float(total)


def first_state(weight: nn.Parameter, place: MemoryTier) -> dict[str, torch.Tensor]:
    """The state before the first step."""
    rows = local(weight)
    state = {"step": torch.zeros((), dtype=torch.float32)}
    if weight.dim() < 2:
        state["variance"] = _zeros(weight, rows.shape, weight.shape, place)
        return state
    state["row_var"] = _zeros(weight, (*rows.shape[:-1], 1), (*weight.shape[:-1], 1), place)
    if weight.dim() == 2:
        state["col_var"] = place.zeros((1, weight.shape[1]), torch.float32, MOMENTS)
        return state
    part = (*rows.shape[:-2], 1, rows.shape[-1])
    whole = (*weight.shape[:-2], 1, weight.shape[-1])
    state["col_var"] = _zeros(weight, part, whole, place)
    return state


def _zeros(
    weight: torch.Tensor, part: tuple[int, ...], whole: tuple[int, ...], place: MemoryTier
) -> torch.Tensor:
    memory = place.zeros(part, torch.float32, MOMENTS)
    if not isinstance(weight, DTensor):
        return memory
    return wrap(memory, weight.device_mesh, weight.placements, whole)


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32).double().square()
