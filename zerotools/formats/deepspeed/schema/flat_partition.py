"""One rank's partition of a flat buffer, as its file has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tensors import as_tensor


@dataclass(frozen=True, slots=True)
class FlatPartition:
    """A contiguous 1-D tensor: `numel` elements from byte `offset` of `file` on."""

    file: str
    offset: int
    numel: int
    dtype: DType


def flat_partition_of(file: TorchFile, value: Any, what: str) -> FlatPartition:
    """Return `value` from the tree of `file`, converted to a contiguous 1-D tensor; `what` is for
    messages.

    Raises:
        BadFile: it is not one.
    """
    tensor = as_tensor(value)
    if tensor is None or len(tensor.shape) != 1 or (tensor.strides != (1,) and tensor.shape[0] > 1):
        raise BadFile(f"{file.path}: {what} is not a flat tensor")
    return FlatPartition(file.name, file.first_byte(tensor), tensor.shape[0], tensor.dtype)
