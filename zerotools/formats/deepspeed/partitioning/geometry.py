"""Where each parameter of a group lies in the flat vectors of all ranks, whoever wrote them.

Stages 1 and 2 (and BF16_Optimizer) flatten the parameters of a group in the order of
`param_shapes`, optionally pad each to an alignment, pad the whole to a multiple of A, and cut it
into N equal partitions of P elements: rank r's vector begins at element r*P of the group.

Stage 3 cuts every parameter on its own: p = ceil(numel / N), rank r owns [r*p, (r+1)*p). A
sub-group's vector is the ranks' slices one after another, each exactly p long.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` (`__init__`, `flatten_dense_tensors_aligned`),
`runtime/zero/partition_parameters.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import DType
from zerotools.core.ranges import Ranges
from zerotools.formats.deepspeed.schema.flat_buffer import (
    FlatPartition,
    RankRange,
    zero3_ranges,
    zero3_rank_ranges,
    zero12_ranges,
    zero12_rank_ranges,
)
from zerotools.formats.deepspeed.schema.model_states import Shapes


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """A group (stage 3: sub-group) over `ranks` ranks.

    `paddings` are elements behind each parameter; there may be fewer than parameters. `partition`
    is P at stages 1 and 2; None at stage 3.
    """

    shapes: Shapes
    paddings: Sequence[int]
    ranks: int
    partition: int | None

    @property
    def total(self) -> int:
        """Elements of the parameters and the paddings between them."""
        return sum(prod(shape) for shape in self.shapes.values()) + sum(self.paddings)

    @property
    def width(self) -> int:
        """Elements of each rank's vector, padding included."""
        if self.partition is not None:
            return self.partition
        return sum(-(-prod(shape) // self.ranks) for shape in self.shapes.values())

    def offsets(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """(name, shape, offset) of each parameter: in the group's vector at stages 1 and 2, in each
        rank's own at stage 3."""
        offset = 0
        for position, (name, shape) in enumerate(self.shapes.items()):
            yield name, shape, offset
            if self.partition is None:
                offset += -(-prod(shape) // self.ranks)
            else:
                offset += prod(shape) + self._padding(position)

    def _padding(self, position: int) -> int:
        return self.paddings[position] if position < len(self.paddings) else 0

    def segments(self, shape: tuple[int, ...], offset: int) -> Iterator[RankRange]:
        """Where the parameter of that shape and offset lies."""
        if self.partition is None:
            numel = prod(shape)
            return zero3_rank_ranges(offset, numel, -(-numel // self.ranks), self.ranks)
        return zero12_rank_ranges(offset, prod(shape), self.partition)

    def tensors(
        self, dtype: DType, vectors: Sequence[FlatPartition | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """The parameters by name, cut out of one vector per rank; None where one is missing."""
        for name, shape, offset in self.offsets():
            yield name, Tensor(dtype, shape, self._chunks(dtype, shape, offset, vectors))

    def _chunks(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        offset: int,
        vectors: Sequence[FlatPartition | None],
    ) -> Ranges:
        partition, numel = self.partition, prod(shape)
        if partition is None:
            width = -(-numel // self.ranks)
            return Ranges(dtype, shape, lambda: zero3_ranges(offset, numel, width, vectors))
        return Ranges(dtype, shape, lambda: zero12_ranges(offset, numel, partition, vectors))


def partition_size(total: int, ranks: int, factor: int = 2) -> int:
    """P: elements of each rank's part of a group of `total`, padded to `factor * ranks`."""
    alignment = factor * ranks
    return -(-total // alignment) * factor


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """What one rank's vector holds: (name, start, count) in its order, and the gaps between."""

    parts: Sequence[tuple[str, int, int]]
    gaps: Sequence[tuple[int, int]]


def partition_contents(geometry: FlatLayout) -> list[PartitionContents]:
    """What each rank's vector holds; what is in no part is padding."""
    parts: list[list[tuple[str, int, int]]] = [[] for _ in range(geometry.ranks)]
    gaps: list[list[tuple[int, int]]] = [[] for _ in range(geometry.ranks)]
    ends = [0] * geometry.ranks

    def skip(rank: int, at: int) -> None:
        if at > ends[rank]:
            gaps[rank].append((ends[rank], at - ends[rank]))

    for name, shape, offset in geometry.offsets():
        for segment in geometry.segments(shape, offset):
            count = segment.end - segment.begin
            skip(segment.rank, segment.at)
            parts[segment.rank].append((name, segment.at, count))
            ends[segment.rank] = segment.at + count
    for rank in range(geometry.ranks):
        skip(rank, geometry.width)
    return [PartitionContents(*both) for both in zip(parts, gaps, strict=True)]
