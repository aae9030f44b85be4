"""The live state from a checkpoint of another program: every rank reads the boxes that it keeps."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key, Tensor
from zerotools.ops.foreign.check import weights_of
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.engine_torch.state import LiveState
from zerotoolsd.trainer.model.box_reader import BoxReader
from zerotoolsd.trainer.model.sharding import local_part
from zerotoolsd.trainer.model.weights import load_weights, persistent_buffers


def load_foreign(live: LiveState, start: ForeignStart) -> None:
    """Fill the live state from `start`, in place; values are cast to its types.

    Raises:
        BadFile: a tensor is incomplete, or its file damaged.
    """
    weights, tensors = weights_of(start.run), start.run.checkpoint.tensors
    with BoxReader(start.run.checkpoint) as reader, torch.no_grad():
        targets = {**live.parameters, **persistent_buffers(live.model)}
        if start.pretrained is not None:
            load_weights(targets, start.record.aliases, start.pretrained)
        else:
            for name, tensor in targets.items():
                _fill(tensor, weights[name], tensors[weights[name]], reader)
        for flat, tensor in live.optimizer.state().items():
            name, _, role = flat.rpartition(".")
            if role == "step":
                tensor.fill_(float(start.updates_of(name)))
            elif name not in start.state.fresh:
                key = Key(name, role)
                _fill(tensor, key, tensors[key], reader)
    live.copy_to_model()


def _fill(tensor: torch.Tensor, key: Key, stored: Tensor, reader: BoxReader) -> None:
    if not isinstance(tensor, DTensor):
        reader.fill(tensor, key, stored, Box.whole(tuple(tensor.shape)))
        return
    local, kept = local_part(tensor)
    if local.numel():
        box = Box(tuple(part.start for part in kept), tuple(local.shape))
        reader.fill(local, key, stored, box)
