"""The check that tensors have only finite values, since runs must continue from checkpoints."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.checkpoints.replicas import TensorTree


def first_not_finite(tree: TensorTree) -> str | None:
    """Return the name of a parameter or moment with an infinity or a NaN in this rank's part.

    Returns None if all values are finite. Every value is read once, on its device. Buffers are not
    checked.
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
