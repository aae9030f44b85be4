"""Makes the optimizer for this rank's shards of the weights. Its state exists before the first
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerotools.core.training_memory_layout import MOMENTS
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs.training_record import OptimizerGroup, OptimizerRecord
from zerotoolsd.trainer.allocate_tensors import MemoryTier
from zerotoolsd.trainer.engine_torch import adafactor, adamw8bit, muon
from zerotoolsd.trainer.engine_torch.reduce_and_update import UpdatePath, clip_factor, local_tensor
from zerotoolsd.trainer.model.sharding import wrap_local

OPTIONS = ("betas", "eps", "momentum")
_RATIO = "rate_ratio"
"""Key of a param group: the ratio of the group's learning rate to the learning rate of the run."""


@dataclass(frozen=True)
class UpdateBucket:
    """Weights that are updated together, with the torch optimizers for them: one, or up to two with
    Muon.
    """

    names: tuple[str, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The param groups of all optimizers of this bucket."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def state(self, weight: nn.Parameter) -> dict[str, torch.Tensor]:
        """Return the optimizer's state tensors for `weight`, keyed by name, such as `exp_avg`."""
        found = (each.state[weight] for each in self.optimizers if weight in each.state)
        return next(found, {})


@dataclass(frozen=True)
class ShardedOptimizer:
    """torch's optimizers for the weights of `reduce_and_update`, in buckets.

    `kind` is the job's `train.optimizer`. `decayed` are the names of the weights with weight decay.
    """

    update_path: UpdatePath
    buckets: tuple[UpdateBucket, ...]
    kind: str
    decayed: frozenset[str]

    def norm(self) -> torch.Tensor:
        """Return the global norm of the gradients, with the loss scale; see `UpdatePath.norm`."""
        return self.update_path.norm()

    def step(self, rate: float, *, norm: float, max_norm: float, loss_scale: float = 1.0) -> None:
        """Update the weights with the learning rate `rate`.

        All ranks call it together. The gradients are divided by `loss_scale`, and clipped to
        `max_norm` (0: not clipped). `norm` is their norm after this division.
        """
        factor = clip_factor(norm, max_norm) / loss_scale
        for bucket in self.buckets:
            for group in bucket.groups:
                group["lr"] = rate * group[_RATIO]
            self.update_path.fetch(bucket.names, factor)
            for optimizer in bucket.optimizers:
                optimizer.step()
            self.update_path.store(bucket.names)
        self.update_path.finish()

    def discard(self) -> None:
        """Free the gradients without an update of the weights."""
        self.update_path.discard()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state tensors, keyed by `<parameter name>.<state>`.

        They are the tensors in use, not copies.
        """
        return {
            f"{name}.{role}": tensor
            for bucket in self.buckets
            for name in bucket.names
            for role, tensor in bucket.state(self.update_path.weights[name]).items()
        }

    def describe(self) -> OptimizerRecord:
        """Return the settings and parameter names of each param group, for the record of a
        checkpoint.
        """
        names = {weight: name for name, weight in self.update_path.weights.items()}
        found: dict[tuple[bool, bool], tuple[dict[str, Any], list[str]]] = {}
        for bucket in self.buckets:
            for group in bucket.groups:
                inner = [names[weight] for weight in group["params"]]
                sort = inner[0] in self.decayed, "momentum" in group
                _, params = found.setdefault(sort, (group, []))
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
    update_path: UpdatePath,
    train: TrainSpec,
    tier: MemoryTier,
    decayed: frozenset[str],
    matrices: frozenset[str] = frozenset(),
) -> ShardedOptimizer:
    """Return the optimizer that `train.optimizer` names, with its state in the memory tier `tier`.

    Only the weights named in `decayed` have weight decay. If the optimizer is `"muon"`, the weights
    named in `matrices` are updated by Muon, and all other weights by AdamW.
    """
    make = _Making(update_path, train, tier, decayed, matrices)
    buckets = [make.bucket(tuple(names)) for names in update_path.buckets() if names]
    return ShardedOptimizer(update_path, tuple(buckets), train.optimizer, decayed)


@dataclass(frozen=True)
class _Making:
    update_path: UpdatePath
    train: TrainSpec
    tier: MemoryTier
    decayed: frozenset[str]
    matrices: frozenset[str]

    def bucket(self, names: tuple[str, ...]) -> UpdateBucket:
        is_muon = self.train.optimizer == "muon"
        mine = [name for name in names if is_muon and name in self.matrices]
        others = [name for name in names if not is_muon or name not in self.matrices]
        found = [self._muon(self._groups(mine))] if mine else []
        found += [self._optimizer(self._groups(others))] if others else []
        for optimizer, own in zip(found, [each for each in (mine, others) if each], strict=True):
            # torch makes the state in the first step; asking for it earlier takes a step with zero
            # gradients, which counts. Tensors that exist can be loaded into, and saved at step 0.
            for name in own:
                weight = self.update_path.weights[name]
                optimizer.state[weight] = self._first_state(weight, by_muon=own is mine)
        return UpdateBucket(names, tuple(found))

    def _groups(self, names: list[str]) -> list[dict[str, Any]]:
        weights = self.update_path.weights
        sorts = (True, self.train.weight_decay), (False, 0.0)
        groups = [
            {
                "params": [
                    weights[name]
                    for name in names
                    if (name in self.decayed) is decays and _dimensions(weights[name]) == count
                ],
                "weight_decay": decay,
                _RATIO: 1.0,
            }
            for decays, decay in sorts
            for count in sorted({_dimensions(weights[name]) for name in names})
        ]
        return [group for group in groups if group["params"]]

    def _muon(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        train = self.train
        rate = train.muon_learning_rate or train.learning_rate
        return muon.Muon(
            [{**group, _RATIO: rate / train.learning_rate} for group in groups],
            self.update_path.reduction,
            lr=rate,
            momentum=train.muon_momentum,
            scale=train.muon_scale,
        )

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        train = self.train
        if train.optimizer == "adafactor":
            return adafactor.Adafactor(groups, self.update_path.reduction, lr=train.learning_rate)
        if train.optimizer == "sgd":
            # The fused one knows no DTensor.
            return torch.optim.SGD(
                groups, lr=train.learning_rate, momentum=train.momentum, foreach=True
            )
        betas = (train.betas[0], train.betas[1])
        if train.optimizer == "adamw8bit":
            return adamw8bit.AdamW8bit(groups, lr=train.learning_rate, betas=betas, eps=train.eps)
        kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=train.learning_rate, betas=betas, eps=train.eps, fused=True)

    def _first_state(self, weight: nn.Parameter, *, by_muon: bool) -> dict[str, torch.Tensor]:
        train = self.train
        if train.optimizer == "adafactor":
            return adafactor.first_state(weight, self.tier)
        if train.optimizer == "adamw8bit":
            return adamw8bit.first_state(weight, self.tier)
        if by_muon:
            return {"momentum_buffer": self._zeros(weight)}
        if train.optimizer == "sgd":
            # Without momentum torch also makes a tensor, which it ignores.
            return {"momentum_buffer": self._zeros(weight)} if train.momentum else {}
        return {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": self._zeros(weight),
            "exp_avg_sq": self._zeros(weight),
        }

    def _zeros(self, weight: nn.Parameter) -> torch.Tensor:
        memory = self.tier.zeros(local_tensor(weight).shape, weight.dtype, MOMENTS)
        if not isinstance(weight, DTensor):
            return memory
        return wrap_local(memory, weight.device_mesh, weight.placements, weight.shape)


def _dimensions(weight: torch.Tensor) -> int:
    """Return the number of dimensions of the device mesh of `weight`.

    One call of a torch optimizer accepts only DTensors of the same mesh.
    """
    return int(weight.device_mesh.ndim) if isinstance(weight, DTensor) else 0
