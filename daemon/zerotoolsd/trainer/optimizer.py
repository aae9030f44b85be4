"""The optimizer over the shards, its state primed so that it exists before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerotools.formats.dcp.jobrecord import OptimizerGroup, OptimizerRecord
from zerotools.jobs.spec import TrainSpec
from zerotoolsd.trainer.partition import Partition
from zerotoolsd.trainer.sharding import REPLICATE

OPTIONS = ("betas", "eps", "momentum")


@dataclass(frozen=True)
class Optimizer:
    """torch's optimizer over `weights`, the part of each parameter that this rank updates.

    `partition` cuts parameters that the ranks hold whole (stage 1); the sharded ones of stages 2
    and 3 are cut already, and at stage 0 every rank updates all.
    """

    torch: torch.optim.Optimizer
    weights: Mapping[str, nn.Parameter]
    partition: Partition | None = None

    def step(self, rate: float) -> None:
        """Update the weights at learning rate `rate`; all ranks call it together."""
        for group in self.torch.param_groups:
            group["lr"] = rate
        if self.partition is None:
            self.torch.step()
            return
        self.partition.take_gradients()
        self.torch.step()
        self.torch.zero_grad(set_to_none=True)
        self.partition.share()

    def state(self) -> dict[str, torch.Tensor]:
        """Its tensors as `<parameter name>.<state>`; they are live, not copies."""
        return {
            f"{name}.{role}": tensor
            for name, weight in self.weights.items()
            for role, tensor in self.torch.state[weight].items()
        }

    def describe(self) -> OptimizerRecord:
        """The groups by parameter name, for the checkpoint's record."""
        names = {weight: name for name, weight in self.weights.items()}
        return OptimizerRecord(
            type(self.torch).__name__.lower(),
            tuple(
                OptimizerGroup(
                    lr=float(group["lr"]),
                    weight_decay=float(group["weight_decay"]),
                    params=tuple(names[weight] for weight in group["params"]),
                    **{name: group[name] for name in OPTIONS if name in group},
                )
                for group in self.torch.param_groups
            ),
        )


def make_optimizer(model: Any, train: TrainSpec, stage: int) -> Optimizer:
    """AdamW or SGD; tensors of two or more dimensions decay, the others do not."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    partition = None
    if stage == 1 and weights:
        mesh = next(iter(weights.values())).device_mesh[REPLICATE]
        partition = Partition(weights, mesh)
        weights = partition.rows
    groups = [
        {
            "params": [p for p in weights.values() if p.dim() >= 2],
            "weight_decay": train.weight_decay,
        },
        {"params": [p for p in weights.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = _optimizer([group for group in groups if group["params"]], train)
    # torch makes the state in the first step; asking for it earlier takes a step with zero
    # gradients, which counts. Tensors that exist can be loaded into, and saved at step 0.
    for weight in weights.values():
        optimizer.state[weight] = _first_state(weight, train)
    return Optimizer(optimizer, weights, partition)


def _optimizer(groups: list[dict[str, Any]], train: TrainSpec) -> torch.optim.Optimizer:
    if train.optimizer == "sgd":
        # The fused one knows no DTensor.
        return torch.optim.SGD(
            groups, lr=train.learning_rate, momentum=train.momentum, foreach=True
        )
    betas = (train.betas[0], train.betas[1])
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.eps, fused=True)


def _first_state(weight: nn.Parameter, train: TrainSpec) -> dict[str, torch.Tensor]:
    if train.optimizer == "sgd":
        # Of no momentum torch makes a tensor, too, only to ignore it.
        return {"momentum_buffer": torch.zeros_like(weight)} if train.momentum else {}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=weight.device),
        "exp_avg": torch.zeros_like(weight),
        "exp_avg_sq": torch.zeros_like(weight),
    }
