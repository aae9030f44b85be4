"""Whether tensors hold only finite values: what is saved must be fit to go on from."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.checkpoints.replicas import TensorTree


def first_not_finite(tree: TensorTree) -> str | None:
    """The name of a parameter or moment of which this rank's part has an infinity or a NaN; None if
    all is finite. Every value is read once, where it is. Buffers may hold what they like.
    """
    parts = {
        f"{top}.{name}": tensor.to_local()
        for top, branch in tree.items()
        for name, tensor in branch.items()
        if isinstance(tensor, DTensor) and tensor.is_floating_point()
    }
    for name, part in parts.items():
        # The extremes are NaN where any value is; a sum of large values may overflow by itself.
        if part.numel() and not bool(torch.stack(torch.aminmax(part)).isfinite().all()):
            return name
    return None
