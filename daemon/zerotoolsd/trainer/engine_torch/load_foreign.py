"""The live state from a checkpoint of another program: every rank reads the boxes that it keeps."""

from __future__ import annotations

import torch

from zerotools.core.checkpoint import Key
from zerotools.ops.foreign.check import weights_of
from zerotoolsd.trainer.engine.foreign_start import ForeignStart
from zerotoolsd.trainer.engine_torch.state import LiveState
from zerotoolsd.trainer.model.box_reader import BoxReader, fill_shard
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
                fill_shard(tensor, weights[name], tensors[weights[name]], reader)
        for flat, tensor in live.optimizer.state().items():
            name, _, role = flat.rpartition(".")
            if role == "step":
                tensor.fill_(float(start.updates_of(name)))
            elif name not in start.state.fresh:
                key = Key(name, role)
                fill_shard(tensor, key, tensors[key], reader)
    live.copy_to_model()
