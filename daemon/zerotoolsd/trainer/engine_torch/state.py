"""The tensors of a run under the names that a checkpoint gives them, at every stage alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zerotools.core.memory_layout import MemoryLayout
from zerotoolsd.trainer.engine.conditional import SeparateExperts
from zerotoolsd.trainer.engine_torch.masters import MasterWeights
from zerotoolsd.trainer.engine_torch.optimizer import ShardedOptimizer
from zerotoolsd.trainer.memory.tiers import MemoryTiers
from zerotoolsd.trainer.model.sharding import is_whole
from zerotoolsd.trainer.model.weights import persistent_buffers


@dataclass(frozen=True)
class LiveState:
    """The model and optimizer that train. Their tensors are loaded into in place.

    Where there are `masters`, the model's own weights are copies of them: see `copy_to_model`.
    """

    model: Any
    layout: MemoryLayout
    optimizer: ShardedOptimizer
    memory: MemoryTiers
    experts: SeparateExperts
    masters: MasterWeights | None = None

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The tensor with the exact value of each parameter, by name."""
        parameters = dict(self.model.named_parameters())
        return parameters if self.masters is None else {**parameters, **self.masters.tensors}

    def copy_to_model(self) -> None:
        """Have the model compute with the values of `parameters`, after they were set from
        outside; all ranks call it together."""
        if self.masters is not None:
            self.masters.copy_to_model()

    def tree(self) -> dict[str, dict[str, torch.Tensor]]:
        """`model.<name>` and `optim.<name>.<state>`; canonical names only. Beside weights in 4 bits
        it is what is trained alone: the others are in the directory of the base model."""
        packs = self.layout.packs_frozen
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        model = {
            name: parameter.detach()
            for name, parameter in self.parameters.items()
            if not packs or name in trained
        }
        return {
            "model": {**model, **persistent_buffers(self.model)},
            "optim": self.optimizer.state(),
        }

    def flat(self) -> dict[str, torch.Tensor]:
        """The same, by dotted name."""
        return {
            f"{top}.{name}": tensor
            for top, branch in self.tree().items()
            for name, tensor in branch.items()
        }

    def replicated(self) -> tuple[str, ...]:
        """Names of the tensors that every rank holds in full, however many ranks there are."""
        return tuple(name for name, tensor in self.flat().items() if is_whole(tensor))
