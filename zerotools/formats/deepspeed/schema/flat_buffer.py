"""The geometry of all ZeRO stages: ranges of partitioned flat vectors, as chunks of tensors.

Every stage cuts flattened parameters into ranges and gives each rank a vector of them. They differ
only in which range of which rank's vector belongs to which parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.ranges import Range
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
    """`value`, from the tree of `file`, as a contiguous 1-D tensor; `what` is for messages.

    Raises:
        BadFile: it is something else.
    """
    tensor = as_tensor(value)
    if tensor is None or len(tensor.shape) != 1 or tensor.strides not in ((1,), (0,)):
        raise BadFile(f"{file.path}: {what} is not a flat tensor")
    return FlatPartition(file.name, file.first_byte(tensor), tensor.shape[0], tensor.dtype)


class RankRange(NamedTuple):
    """Elements [begin, end) of a flattened parameter: from element `at` of `rank`'s vector on."""

    rank: int
    at: int
    begin: int
    end: int


def zero12_rank_ranges(offset: int, numel: int, partition: int) -> Iterator[RankRange]:
    """Stages 1 and 2: a parameter at [offset, offset+numel) of a group's vector, of which rank r
    owns [r*partition, (r+1)*partition)."""
    if not numel:
        return
    for rank in range(offset // partition, (offset + numel - 1) // partition + 1):
        first = rank * partition
        begin, end = max(offset, first), min(offset + numel, first + partition)
        yield RankRange(rank, begin - first, begin - offset, end - offset)


def zero3_rank_ranges(offset: int, numel: int, width: int, ranks: int) -> Iterator[RankRange]:
    """Stage 3: a parameter whose rank r owns [r*width, (r+1)*width) of it.

    Its slice starts at element `offset` of every rank's vector.
    """
    for rank in range(ranks):
        begin = rank * width
        if begin >= numel:
            return
        yield RankRange(rank, offset, begin, min(begin + width, numel))


def zero12_ranges(
    offset: int, numel: int, partition: int, vectors: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """`zero12_rank_ranges` in vectors; `vectors[r]` is None where rank r's file is missing."""
    return _ranges(zero12_rank_ranges(offset, numel, partition), vectors)


def zero3_ranges(
    offset: int, numel: int, width: int, vectors: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """`zero3_rank_ranges` in vectors; `vectors[r]` is None where rank r's file is missing."""
    return _ranges(zero3_rank_ranges(offset, numel, width, len(vectors)), vectors)


def _ranges(
    segments: Iterator[RankRange], vectors: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """What a vector is too short to hold is left out: a hole, which the plan names."""
    for rank, at, begin, end in segments:
        vector = vectors[rank] if rank < len(vectors) else None
        if vector is None:
            continue
        if begin + vector.numel < end + at:
            end = begin + vector.numel - at
        if begin < end:
            yield Range(begin, end, vector.file, vector.offset + at * vector.dtype.itemsize)
