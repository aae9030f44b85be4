"""Predicts the memory of a rank's state, before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.core.loss_chunk_sizes import LossSize
from zerotools.core.training_memory_layout import DEVICE, DISK, HOST, MemoryLayout
from zerotools.ops.estimate.state_memory import (
    Parameter,
    bytes_at,
    gathered_bytes,
    loss_bytes,
    state_of,
)
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.nf4_linear import packed_linears
from zerotoolsd.trainer.model.optimizer_groups import muon_names
from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

MIB = 1 << 20


def parameters_of(
    meta_model: MetaModel, kept: frozenset[str] = frozenset(), tensor_ranks: int = 1
) -> list[Parameter]:
    """Return the parameters of the model for a memory estimate.

    A tied parameter occurs once. 4-bit weights are included. Each entry has its block, and the
    dimension that tensor ranks split. Parameters in `kept` are fp32.
    """
    found = []
    matrices = muon_names(meta_model.model)
    cuts = layer_cuts(meta_model.model, tensor_ranks).dimensions
    for name, parameter in meta_model.model.named_parameters():
        block = next((b for b in meta_model.blocks if name.startswith(f"{b}.")), None)
        shape, in_fp32 = tuple(parameter.shape), name in kept
        trained, is_hidden = parameter.requires_grad, name in matrices
        found.append(Parameter(shape, trained, block, in_fp32, is_hidden, cuts.get(name)))
    for _, layer in packed_linears(meta_model.model):
        shape = layer.out_features, layer.in_features
        found.append(Parameter(shape, is_trained=False, is_packed=True))
    return found


@dataclass(frozen=True)
class Prediction:
    """The predicted memory of a rank's state, in bytes.

    Attributes:
        device: state that is on the device between steps.
        gathered: weights that are gathered on the device during a forward or backward pass.
        host: state in host memory.
        disk: state on disk.
    """

    device: int
    gathered: int
    host: int
    disk: int
    on_gpu: bool = True
    loss: int = 0
    """Bytes on the device for the loss during a forward or backward pass; 0 if unknown."""

    def __str__(self) -> str:
        parts = [f"{_mib(self.device)} on {'the GPU' if self.on_gpu else 'the device'}"]
        if self.gathered:
            parts[0] += f" and {_mib(self.gathered)} of gathered weights"
        if self.loss:
            parts[0] += f" and at most {_mib(self.loss)} for the loss"
        if self.host:
            parts.append(f"{_mib(self.host)} in the host's memory")
        if self.disk:
            parts.append(f"{_mib(self.disk)} on disk")
        return f"state of a rank: {', '.join(parts)}; activations take memory in addition"


def predict_state_memory(
    meta_model: MetaModel,
    layout: MemoryLayout,
    loss_size: LossSize | None = None,
    *,
    on_gpu: bool,
    kept: frozenset[str] = frozenset(),
) -> Prediction:
    """Predict the memory of a rank's state.

    The parameters in `kept` are fp32. `loss_size` is the size of the loss; None if unknown.
    """
    parameters = parameters_of(meta_model, kept, layout.tensor_ranks)
    state = state_of(parameters, layout)
    return Prediction(
        bytes_at(state, DEVICE),
        gathered_bytes(parameters, layout) if layout.engine == "torch" else 0,
        bytes_at(state, HOST),
        bytes_at(state, DISK),
        on_gpu=on_gpu,
        loss=0 if loss_size is None else _loss_bytes(meta_model, layout, loss_size),
    )


def _loss_bytes(meta_model: MetaModel, layout: MemoryLayout, size: LossSize) -> int:
    head = meta_model.model.get_output_embeddings()
    trained = head is None or any(p.requires_grad for p in head.parameters())
    return loss_bytes(size, layout.precision, trains_head=trained)


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"
