"""The geometry of all ZeRO stages: ranges of partitioned flat vectors, as chunks of tensors.

Every stage cuts flattened parameters into ranges and gives each rank a vector of them. They differ
only in which range of which rank's vector belongs to which parameter, which is what a `Segment`
says; a range of a parameter is then at most 2n-1 boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.boxes import boxes_of_range
from zerotools.core.checkpoint import Chunk
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
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


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements [begin, end) of a flattened parameter lie from element `at` of `vector` on."""

    begin: int
    end: int
    vector: Vector
    at: int


class ChunksOnDemand(Sequence[Chunk]):
    """Chunks that are computed each time they are asked for, so that a list is never kept."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], list[Chunk]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int and slice alike
        return self._make()[index]


def chunks_of(shape: tuple[int, ...], segments: Iterable[Segment]) -> list[Chunk]:
    """The chunks of a tensor of `shape` that segments of its flattened form make up.

    What a vector is too short to hold is left out: a hole, which the plan names.
    """
    chunks = []
    for segment in segments:
        vector, at = segment.vector, segment.at
        end = min(segment.end, segment.begin + max(0, vector.numel - at))
        for box in boxes_of_range(shape, segment.begin, max(segment.begin, end)):
            chunks.append(Chunk(box, vector.file, vector.offset + at * vector.dtype.itemsize))
            at += box.numel
    return chunks


def partition_segments(
    offset: int, numel: int, partition: int, vectors: Sequence[Vector | None]
) -> Iterator[Segment]:
    """Stages 1 and 2: a parameter at [offset, offset+numel) of a group's vector.

    Rank r owns [r*partition, (r+1)*partition); `vectors[r]` is None where its file is missing.
    """
    if not numel:
        return
    for rank in range(offset // partition, (offset + numel - 1) // partition + 1):
        vector = vectors[rank] if rank < len(vectors) else None
        if vector is None:
            continue
        begin, end = max(offset, rank * partition), min(offset + numel, (rank + 1) * partition)
        yield Segment(begin - offset, end - offset, vector, begin - rank * partition)


def slice_segments(
    offset: int, numel: int, width: int, vectors: Sequence[Vector | None]
) -> Iterator[Segment]:
    """Stage 3: a parameter whose rank r owns [r*width, (r+1)*width) of it.

    Its slice starts at element `offset` of every rank's vector.
    """
    for rank, vector in enumerate(vectors):
        begin, end = rank * width, min((rank + 1) * width, numel)
        if begin < end and vector is not None:
            yield Segment(begin, end, vector, offset)
