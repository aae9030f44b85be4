"""Check the values of tensors: find NaN, infinities and negative values that a tensor of its role
cannot have.

Only attention masks may have infinities. Formats of weights store masks among the weights, and
`is_mask` finds them: a mask has 0 for visible positions and minus infinity for the others, or 1 and
infinity, so all its finite elements are equal.

The digest of a cast to a narrower dtype proves every bit of a tensor if this dtype can hold all
values of the tensor exactly (`is_exact_in`). For example, a bf16 digest proves a weight that was
frozen in bf16 and exported in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.io.numeric.dtype_casts import Array, as_type, numpy_dtype
from zerotools.ops.execution.element_blocks import FlatValues
from zerotools.ops.verification.file_scan import NEVER_NEGATIVE

_PART_BYTES = 2**18
_WEIGHTS = ("param", "param16")


def is_mask(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a tensor may be a mask: it has no NaN, and all its finite elements
    are equal."""
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
    """Return whether a cast to `narrow` and back changes no byte of a tensor.

    Raises:
        BadFile: the tensor is incomplete, or a file is missing or truncated.
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
    """Yield sentences about values that a tensor of the role of `key` cannot have. `counts` are the
    counts of such values."""
    path = checkpoint.origin.path
    if (counts.nans or counts.infinities) and key.role != "buffer":
        what = "weight" if key.role in _WEIGHTS else "optimizer state"
        yield (
            f"{path}: {key} holds {counts.nans} NaN and {counts.infinities} infinite values, and "
            f"no training can continue with this {what}; take an older checkpoint"
        )
    if counts.negatives and key.role in NEVER_NEGATIVE:
        yield (
            f"{path}: {key} holds {counts.negatives} values below zero, but a sum of squares is "
            "never negative: the tensor has changed since the optimizer saved it; copy or "
            "download the file again"
        )


def parts_of(checkpoint: Checkpoint, key: Key, opened: OpenFiles) -> Iterator[Array]:
    """Yield the elements of a tensor in order, part by part. Every part uses the same buffer.
    `opened` are the files of the checkpoint.

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
