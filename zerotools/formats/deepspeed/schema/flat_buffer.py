"""The geometry of all ZeRO stages: ranges of partitioned flat buffers, as chunks of tensors.

Every stage cuts flattened parameters into ranges and gives each rank a partition of them. They
differ only in which range of which rank's partition belongs to which parameter.
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
    """Elements [begin, end) of a flattened parameter: from `partition_offset` of
    `rank`'s partition on."""

    rank: int
    partition_offset: int
    begin: int
    end: int


def zero12_rank_ranges(offset: int, numel: int, partition_numel: int) -> Iterator[RankRange]:
    """Stages 1 and 2: a parameter at [offset, offset+numel) of a group's flat buffer, of which rank
    r owns [r*partition_numel, (r+1)*partition_numel)."""
    if not numel:
        return
    for rank in range(offset // partition_numel, (offset + numel - 1) // partition_numel + 1):
        first = rank * partition_numel
        begin, end = max(offset, first), min(offset + numel, first + partition_numel)
        yield RankRange(rank, begin - first, begin - offset, end - offset)


def zero3_rank_ranges(
    offset: int, numel: int, partition_numel: int, dp_size: int
) -> Iterator[RankRange]:
    """Stage 3: a parameter of which rank r owns [r*partition_numel, (r+1)*partition_numel).

    Its range starts at element `offset` of every rank's partition.
    """
    for rank in range(dp_size):
        begin = rank * partition_numel
        if begin >= numel:
            return
        yield RankRange(rank, offset, begin, min(begin + partition_numel, numel))


def zero12_ranges(
    offset: int, numel: int, partition_numel: int, partitions: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """`zero12_rank_ranges` in files; `partitions[r]` is None where rank r's file is missing."""
    return _ranges(zero12_rank_ranges(offset, numel, partition_numel), partitions)


def zero3_ranges(
    offset: int, numel: int, partition_numel: int, partitions: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """`zero3_rank_ranges` in files; `partitions[r]` is None where rank r's file is missing."""
    return _ranges(zero3_rank_ranges(offset, numel, partition_numel, len(partitions)), partitions)


def _ranges(
    rank_ranges: Iterator[RankRange], partitions: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """What a partition is too short to hold is left out: a hole, which the plan names."""
    for rank, partition_offset, begin, end in rank_ranges:
        partition = partitions[rank] if rank < len(partitions) else None
        if partition is None:
            continue
        if begin + partition.numel < end + partition_offset:
            end = begin + partition.numel - partition_offset
        if begin < end:
            yield Range(
                begin,
                end,
                partition.file,
                partition.offset + partition_offset * partition.dtype.itemsize,
            )
