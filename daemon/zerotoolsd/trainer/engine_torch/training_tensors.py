"""The tensors of a run, keyed by their names in a checkpoint. The names are the same at every ZeRO
stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from zerotools.core.training_memory_layout import MemoryLayout
from zerotoolsd.trainer.allocate_tensors import MemoryTiers
from zerotoolsd.trainer.engine.conditional_layers import SeparateExperts
from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights
from zerotoolsd.trainer.engine_torch.optimizer import ShardedOptimizer
from zerotoolsd.trainer.model.fill_shards import persistent_buffers
from zerotoolsd.trainer.model.sharding import as_saved, is_whole

TensorsByName = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LiveState:
    """The model and the optimizer of a run.

    A checkpoint is loaded into their tensors in place. If there are `masters`, the model's weights
    are copies of these fp32 master weights: see `copy_to_model`. `mesh` is set only for a single
    rank without FSDP2, which has plain tensors.
    """

    model: Any
    layout: MemoryLayout
    optimizer: ShardedOptimizer
    memory: MemoryTiers
    experts: SeparateExperts
    masters: MasterWeights | None = None
    mesh: DeviceMesh | None = None

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """For each parameter name, the tensor with the exact value: its fp32 master, or the
        parameter itself.
        """
        parameters = dict(self.model.named_parameters())
        return parameters if self.masters is None else {**parameters, **self.masters.tensors}

    def copy_to_model(self) -> None:
        """Copy the masters to the model's weights after a load. All ranks call it together."""
        if self.masters is not None:
            self.masters.copy_to_model()

    def tree(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the tensors that a checkpoint saves, in two mappings.

        `model` maps `<parameter name>` to its tensor, and `optim` maps `<parameter name>.<state>`.
        A tied parameter is included once, under its first name. If frozen weights have 4 bits, only
        trained weights are included. The frozen weights are in the directory of the base model.
        """
        packs = self.layout.packs_frozen
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        model = {
            name: parameter.detach()
            for name, parameter in self.parameters.items()
            if not packs or name in trained
        }
        optimizer = self.optimizer.state()
        if self.mesh is not None:
            model, optimizer = self._as_saved(model, optimizer, self.mesh)
        return {"model": {**model, **persistent_buffers(self.model)}, "optim": optimizer}

    def _as_saved(
        self, model: TensorsByName, optimizer: TensorsByName, mesh: DeviceMesh
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return `model` and `optimizer` with the DTensors that FSDP2 would have on a single rank.

        A tensor that has the rows of a weight becomes a shard or a replica, as the stage requires.
        All other tensors stay plain tensors.
        """
        cuts_weights = not self.layout.replicates_weights
        cuts_rows = cuts_weights or self.layout.stage == 1
        masters = () if self.masters is None else self.masters.tensors
        weights = {
            name: as_saved(tensor, mesh, is_cut=cuts_rows if name in masters else cuts_weights)
            for name, tensor in model.items()
        }
        state = {}
        for name, tensor in optimizer.items():
            weight = model[name.rpartition(".")[0]]
            has_rows = tensor.dim() == weight.dim() and tensor.shape[:1] == weight.shape[:1]
            is_row = has_rows and tensor.dim() > 0
            state[name] = as_saved(tensor, mesh, is_cut=cuts_rows) if is_row else tensor
        return weights, state

    def flat(self) -> dict[str, torch.Tensor]:
        """Return the tensors of `tree` in one mapping, keyed by dotted names such as
        `model.<parameter name>`.
        """
        return {
            f"{top}.{name}": tensor
            for top, branch in self.tree().items()
            for name, tensor in branch.items()
        }

    def replicated(self) -> tuple[str, ...]:
        """Return the names of the tensors for which `is_whole` is True."""
        return tuple(name for name, tensor in self.flat().items() if is_whole(tensor))
