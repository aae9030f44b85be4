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
            "adamw",
            tuple(
                OptimizerGroup(
                    lr=float(group["lr"]),
                    weight_decay=float(group["weight_decay"]),
                    betas=(float(group["betas"][0]), float(group["betas"][1])),
                    eps=float(group["eps"]),
                    params=tuple(names[weight] for weight in group["params"]),
                )
                for group in self.torch.param_groups
            ),
        )


def make_optimizer(model: Any, train: TrainSpec, stage: int) -> Optimizer:
    """Fused AdamW; tensors of two or more dimensions decay, the others do not."""
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
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(train.betas[0], train.betas[1]),
        eps=train.eps,
        fused=True,
    )
    _prime(optimizer)
    return Optimizer(optimizer, weights, partition)


def _prime(optimizer: torch.optim.Optimizer) -> None:
    # torch makes the state in the first step; asking for it earlier takes a step with zero
    # gradients, which counts. Tensors that exist can be loaded into, and saved at step 0.
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = {
                "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
