"""The optimizer over the shards, its state primed so that it exists before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerotools.core.memory_layout import MOMENTS
from zerotools.jobs.tables.train import TrainSpec
from zerotools.runs.record import OptimizerGroup, OptimizerRecord
from zerotoolsd.trainer.engine_torch import adafactor
from zerotoolsd.trainer.engine_torch.gradients import Reduction, UpdatePath, clipping, local
from zerotoolsd.trainer.memory.tiers import MemoryTier
from zerotoolsd.trainer.model.sharding import wrap

OPTIONS = ("betas", "eps", "momentum")


@dataclass(frozen=True)
class UpdateBucket:
    """Weights that are updated at once, and torch's optimizer of them."""

    names: tuple[str, ...]
    torch: torch.optim.Optimizer


@dataclass(frozen=True)
class ShardedOptimizer:
    """torch's optimizers over the weights that `update_path` brings gradients to."""

    update_path: UpdatePath
    buckets: tuple[UpdateBucket, ...]
    kind: str
    decayed: frozenset[str]

    def norm(self) -> float:
        """The global norm of the gradients as they are, scaled by the loss scale."""
        return self.update_path.norm()

    def step(self, rate: float, *, norm: float, max_norm: float, loss_scale: float = 1.0) -> None:
        """Update the weights at learning rate `rate`, by gradients of `norm` that are clipped to
        `max_norm` (0: not), both without the loss scale; all ranks call it together."""
        factor = clipping(norm, max_norm) / loss_scale
        for bucket in self.buckets:
            for group in bucket.torch.param_groups:
                group["lr"] = rate
            self.update_path.fetch(bucket.names, factor)
            bucket.torch.step()
            self.update_path.store(bucket.names)
        self.update_path.finish()

    def discard(self) -> None:
        """Let go of the gradients; the weights stay as they are."""
        self.update_path.discard()

    def state(self) -> dict[str, torch.Tensor]:
        """Its tensors as `<parameter name>.<state>`; they are live, not copies."""
        return {
            f"{name}.{role}": tensor
            for bucket in self.buckets
            for name in bucket.names
            for role, tensor in bucket.torch.state[self.update_path.weights[name]].items()
        }

    def describe(self) -> OptimizerRecord:
        """The groups by parameter name, for the checkpoint's record."""
        names = {weight: name for name, weight in self.update_path.weights.items()}
        found: dict[bool, tuple[dict[str, Any], list[str]]] = {}
        for bucket in self.buckets:
            for group in bucket.torch.param_groups:
                inner = [names[weight] for weight in group["params"]]
                _, params = found.setdefault(inner[0] in self.decayed, (group, []))
                params += inner
        groups = (
            OptimizerGroup(
                lr=float(group["lr"]),
                weight_decay=float(group["weight_decay"]),
                params=tuple(params),
                **{name: group[name] for name in OPTIONS if name in group},
            )
            for _, (group, params) in sorted(found.items(), reverse=True)
        )
        return OptimizerRecord(self.kind, tuple(groups))


def make_optimizer(
    update_path: UpdatePath, train: TrainSpec, place: MemoryTier, decayed: frozenset[str]
) -> ShardedOptimizer:
    """What `train.optimizer` names, its state at `place`; the weights called `decayed` decay, the
    others do not."""
    buckets = [
        _bucket(update_path, tuple(names), train, place, decayed)
        for names in update_path.buckets()
        if names
    ]
    return ShardedOptimizer(update_path, tuple(buckets), train.optimizer, decayed)


def _bucket(
    update_path: UpdatePath,
    names: tuple[str, ...],
    train: TrainSpec,
    place: MemoryTier,
    decayed: frozenset[str],
) -> UpdateBucket:
    weights = [update_path.weights[name] for name in names]
    decays = {weight: name in decayed for name, weight in zip(names, weights, strict=True)}
    groups = [
        {"params": [p for p in weights if decays[p]], "weight_decay": train.weight_decay},
        {"params": [p for p in weights if not decays[p]], "weight_decay": 0.0},
    ]
    optimizer = _optimizer(
        [group for group in groups if group["params"]], train, update_path.reduction
    )
    # torch makes the state in the first step; asking for it earlier takes a step with zero
    # gradients, which counts. Tensors that exist can be loaded into, and saved at step 0.
    for weight in weights:
        optimizer.state[weight] = _first_state(weight, train, place)
    return UpdateBucket(names, optimizer)


def _optimizer(
    groups: list[dict[str, Any]], train: TrainSpec, reduction: Reduction
) -> torch.optim.Optimizer:
    if train.optimizer == "adafactor":
        return adafactor.Adafactor(groups, reduction, lr=train.learning_rate)
    if train.optimizer == "sgd":
        # The fused one knows no DTensor.
        return torch.optim.SGD(
            groups, lr=train.learning_rate, momentum=train.momentum, foreach=True
        )
    betas = (train.betas[0], train.betas[1])
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.eps, fused=True)


def _first_state(
    weight: nn.Parameter, train: TrainSpec, place: MemoryTier
) -> dict[str, torch.Tensor]:
    if train.optimizer == "adafactor":
        return adafactor.first_state(weight, place)
    if train.optimizer == "sgd":
        # Of no momentum torch makes a tensor, too, only to ignore it.
        return {"momentum_buffer": _zeros(weight, place)} if train.momentum else {}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=weight.device),
        "exp_avg": _zeros(weight, place),
        "exp_avg_sq": _zeros(weight, place),
    }


def _zeros(weight: nn.Parameter, place: MemoryTier) -> torch.Tensor:
    memory = place.zeros(local(weight).shape, weight.dtype, MOMENTS)
    if not isinstance(weight, DTensor):
        return memory
    return wrap(memory, weight.device_mesh, weight.placements, weight.shape)
