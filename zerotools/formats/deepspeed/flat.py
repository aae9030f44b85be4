"""The geometry of all ZeRO stages: ranges of partitioned flat vectors, as chunks of tensors.

Every stage cuts flattened parameters into ranges and gives each rank a vector of them. They differ
only in which range of which rank's vector belongs to which parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.ranges import Range
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.torchfile import TorchFile


@dataclass(frozen=True, slots=True)
class Vector:
    """A contiguous 1-D tensor: `numel` elements from byte `offset` of `file` on."""

    file: str
    offset: int
    numel: int
    dtype: DType


def vector_of(file: TorchFile, value: Any, what: str) -> Vector:
    """`value`, from the tree of `file`, as a contiguous 1-D tensor; `what` is for messages.

    Raises:
        BadFile: it is something else.
    """
    tensor = as_tensor(value)
    if tensor is None or len(tensor.shape) != 1 or tensor.strides not in ((1,), (0,)):
        raise BadFile(f"{file.path}: {what} is not a flat tensor")
    return Vector(file.name, file.first_byte(tensor), tensor.shape[0], tensor.dtype)


def partition_ranges(
    offset: int, numel: int, partition: int, vectors: Sequence[Vector | None]
) -> Iterator[Range]:
    """Stages 1 and 2: a parameter at [offset, offset+numel) of a group's vector.

    Rank r owns [r*partition, (r+1)*partition); `vectors[r]` is None where its file is missing.
    """
    if not numel:
        return
    for rank in range(offset // partition, (offset + numel - 1) // partition + 1):
        vector = vectors[rank] if rank < len(vectors) else None
        if vector is not None:
            first = rank * partition
            begin, end = max(offset, first), min(offset + numel, first + partition)
            found = _held(vector, begin - first, begin - offset, end - offset)
            if found is not None:
                yield found


def slice_ranges(
    offset: int, numel: int, width: int, vectors: Sequence[Vector | None]
) -> Iterator[Range]:
    """Stage 3: a parameter whose rank r owns [r*width, (r+1)*width) of it.

    Its slice starts at element `offset` of every rank's vector.
    """
    for rank, vector in enumerate(vectors):
        begin = rank * width
        if vector is not None and begin < numel:
            found = _held(vector, offset, begin, min(begin + width, numel))
            if found is not None:
                yield found


def _held(vector: Vector, at: int, begin: int, end: int) -> Range | None:
    """Elements [begin, end) of a parameter, which lie from element `at` of `vector` on.

    What the vector is too short to hold is left out: a hole, which the plan names.
    """
    end = min(end, begin + vector.numel - at)
    if begin >= end:
        return None
    return Range(begin, end, vector.file, vector.offset + at * vector.dtype.itemsize)
