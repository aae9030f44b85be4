"""Find the dtype of a checkpoint's weights, and the dtype that its model computes in."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType


def weights_dtype(checkpoint: Checkpoint) -> DType | None:
    """Return the floating-point dtype of most bytes of the weights, or None."""
    sizes: dict[DType, int] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.role == "param" and tensor.dtype.is_float:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def trained_precision(checkpoint: Checkpoint) -> DType | None:
    """Return the dtype that the model computes in: the dtype of its weights, if it has 16 bits.

    For other weights return None: a model may cast fp32 weights before it computes.
    """
    dtype = weights_dtype(checkpoint)
    return dtype if dtype in (FLOAT16, BFLOAT16) else None
