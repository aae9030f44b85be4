"""Checks over all elements of one tensor, made only if something else gives a reason.

A mask for attention is 0 for visible positions and minus infinity elsewhere, or 1 and infinity: its
finite elements are all the same number. Formats that do not separate buffers from weights have such
masks among the weights; weights ruined by training have another pattern.

A digest in a narrower type covers every bit if all values are of that type. For example, the bf16
digest covers all of a weight that was frozen in bf16 and exported in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.numpy_dtypes import Array, as_type, numpy_dtype
from zerotools.io.numeric.value_counts import ValueCounts
from zerotools.ops.verification.digests import FlatValues
from zerotools.ops.verification.file_scan import NEVER_NEGATIVE

_PART_BYTES = 2**18
_WEIGHTS = ("param", "param16")


def is_mask(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a tensor with infinite elements has no NaN, and no two finite numbers that
    differ."""
    known: np.float64 | None = None
    try:
        with OpenFiles(checkpoint.root) as opened:
            for part in parts_of(checkpoint, key, opened):
                found = part.astype(np.float64)
                finite = found[np.isfinite(found)]
                known = finite[0] if known is None and finite.size else known
                if np.isnan(found).any() or (finite != known).any():
                    return False
    except BadFile:  # another check reports it
        return False
    return True


def is_exact_in(checkpoint: Checkpoint, key: Key, narrow: DType) -> bool:
    """Return whether a cast of a tensor to `narrow` and back changes no byte.

    Raises:
        BadFile: it is incomplete, or a file is missing or truncated.
    """
    dtype = checkpoint.tensors[key].dtype
    with OpenFiles(checkpoint.root) as opened:
        return all(
            np.array_equal(
                as_type(as_type(part, narrow), dtype).view(np.uint8), part.view(np.uint8)
            )
            for part in parts_of(checkpoint, key, opened)
        )


def odd_values(checkpoint: Checkpoint, key: Key, counts: ValueCounts) -> Iterator[str]:
    """Yield sentences on impossible values: a mask can be infinite, a weight or a moment cannot."""
    path = checkpoint.origin.path
    if (counts.nans or counts.infinities) and key.role != "buffer":
        what = "weights" if key.role in _WEIGHTS else "optimizer state"
        yield (
            f"{path}: {key} holds {counts.nans} NaN and {counts.infinities} infinite values: its "
            f"{what} cannot be trained on; take an older checkpoint"
        )
    if counts.negatives and key.role in NEVER_NEGATIVE:
        yield (
            f"{path}: {key} holds {counts.negatives} values below zero, but a sum of squares has "
            "none: it has changed since the optimizer saved it; take another copy"
        )


def parts_of(checkpoint: Checkpoint, key: Key, opened: OpenFiles) -> Iterator[Array]:
    """Yield the elements of a tensor in their order, in a buffer that each part reuses; `opened`
    are the files of the checkpoint.

    Raises:
        BadFile: the tensor is incomplete, or a file is missing or truncated.
    """
    tensor = checkpoint.tensors[key]
    most = min(_PART_BYTES, max(1, tensor.nbytes))
    raw, buffer = np.empty(most, np.uint8), np.empty(_PART_BYTES, np.uint8)
    step = most // tensor.dtype.itemsize
    values = FlatValues(key, tensor, checkpoint)
    with opened.holding() as held:
        for begin in range(0, tensor.numel, step):
            end = min(begin + step, tensor.numel)
            part = raw[: (end - begin) * tensor.dtype.itemsize]
            values.read(held, begin, end, part, buffer)
            yield part.view(numpy_dtype(tensor.dtype))
