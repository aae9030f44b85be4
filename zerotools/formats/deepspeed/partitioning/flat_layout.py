"""Compute the position of each parameter of a group in the flat buffers of all ranks.

An example: a param group of w (2 x 3 elements), b (3) and v (5), on two ranks. `w4` is element 4 of
the flattened w, `..` an element of padding, `|` the border between the partitions of the ranks.

Stages 1 and 2 (and BF16_Optimizer) flatten the parameters one after another in the order of
`param_shapes`, pad the whole to a multiple of A = 2 * ranks, and cut it into equal partitions of
P = 8 elements. The partition of rank r begins at element r * P. A border may be inside a parameter:

    rank 0                  | rank 1
    w0 w1 w2 w3 w4 w5 b0 b1 | b2 v0 v1 v2 v3 v4 .. ..

So b is two ranges: its elements [0, 2) begin at element 6 of rank 0's partition, and its element 2
is element 0 of rank 1's partition. Most of the padding at the end of a buffer is cut off the saved
masters, but not off the moments: rank 1 saves 6 masters, and 8 elements of each moment.

With `round_robin_gradients`, the parameters are dealt to the ranks in turn: w to rank 0, b to rank
1, v to rank 0. So w and v come first:

    w0 w1 w2 w3 w4 w5 v0 v1 | v2 v3 v4 b0 b1 b2 .. ..

With `parameter_alignment` in fp32, each parameter begins at a multiple of 4 elements (16 bytes) of
the buffer, and P = 10:

    w0 w1 w2 w3 w4 w5 .. .. b0 b1 | b2 .. v0 v1 v2 v3 v4 .. .. ..

Stage 3 partitions each parameter on its own: p = ceil(numel / ranks), and rank r has elements [r *
p, (r + 1) * p) of it, padded to p. The buffer of a rank is its partitions of all parameters of a
sub-group (`writing/target_layout.py`), one after another; here p is 3 for w, 2 for b and 3 for v:

    w0 w1 w2 b0 b1 v0 v1 v2 | w3 w4 w5 b2 .. v3 v4 ..

So a parameter begins at the same element on every rank, and padding lies between parameters. Each
param group (stage 3: each sub-group) has such a buffer for its masters, and one of the same layout
for each kind of optimizer state.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py` (`__init__`, `flatten_dense_tensors_aligned`),
`runtime/zero/partition_parameters.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.flat_ranges import Range, Ranges
from zerotools.formats.deepspeed.schema.model_states import Shapes
from zerotools.formats.deepspeed.schema.optim_states import FlatPartition


class RankRange(NamedTuple):
    """Elements [begin, end) of a flattened parameter. They begin at element `partition_offset` of
    the partition of `rank`."""

    rank: int
    partition_offset: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """The positions of the parameters of a group (stage 3: of a sub-group) in the flat buffer that
    `dp_size` ranks share.

    `paddings` has the number of padding elements after each parameter; if the list is shorter than
    the list of parameters, the rest have no padding. `zero12_numel` is P, the size of a partition
    at stages 1 and 2; None at stage 3.
    """

    shapes: Shapes
    paddings: Sequence[int]
    dp_size: int
    zero12_numel: int | None

    @property
    def total(self) -> int:
        """The number of elements of the parameters, with the padding between them."""
        return sum(prod(shape) for shape in self.shapes.values()) + sum(self.paddings)

    @property
    def partition_numel(self) -> int:
        """The number of elements in each rank's partition, padding included."""
        if self.zero12_numel is not None:
            return self.zero12_numel
        return sum(-(-prod(shape) // self.dp_size) for shape in self.shapes.values())

    def offsets(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Yield (name, shape, offset) of each parameter. The offset is in elements.

        It is a position in the whole flat buffer at stages 1 and 2, and in each rank's partition at
        stage 3.
        """
        offset = 0
        for position, (name, shape) in enumerate(self.shapes.items()):
            yield name, shape, offset
            if self.zero12_numel is None:
                offset += -(-prod(shape) // self.dp_size)
            else:
                offset += prod(shape) + self._padding(position)

    def _padding(self, position: int) -> int:
        return self.paddings[position] if position < len(self.paddings) else 0

    def rank_ranges(self, shape: tuple[int, ...], offset: int) -> Iterator[RankRange]:
        """Yield the ranges of a parameter on the ranks, from its shape and its offset."""
        if self.zero12_numel is None:
            return _zero3(offset, prod(shape), self.dp_size)
        return _zero12(offset, prod(shape), self.zero12_numel)

    def tensors(
        self, dtype: DType, partitions: Sequence[FlatPartition | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of each parameter, made from one partition for each rank; a missing
        partition is None.
        """
        for name, shape, offset in self.offsets():
            yield name, Tensor(dtype, shape, self._chunks(dtype, shape, offset, partitions))

    def _chunks(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        offset: int,
        partitions: Sequence[FlatPartition | None],
    ) -> Ranges:
        return Ranges(dtype, shape, lambda: _in_files(self.rank_ranges(shape, offset), partitions))


def _zero12(offset: int, numel: int, partition_numel: int) -> Iterator[RankRange]:
    """Yield the ranges at stages 1 and 2: a parameter is [offset, offset+numel) of the group's
    buffer."""
    if not numel:
        return
    for rank in range(offset // partition_numel, (offset + numel - 1) // partition_numel + 1):
        first = rank * partition_numel
        begin, end = max(offset, first), min(offset + numel, first + partition_numel)
        yield RankRange(rank, begin - first, begin - offset, end - offset)


def _zero3(offset: int, numel: int, dp_size: int) -> Iterator[RankRange]:
    """Yield the ranges at stage 3: a parameter's partition begins at element `offset` on every
    rank."""
    width = -(-numel // dp_size)
    for rank in range(dp_size):
        begin = rank * width
        if begin >= numel:
            return
        yield RankRange(rank, offset, begin, min(begin + width, numel))


def _in_files(
    ranges: Iterator[RankRange], partitions: Sequence[FlatPartition | None]
) -> Iterator[Range]:
    """Yield the ranges with their positions in files. Elements beyond the end of a saved partition
    are left out, so they become a hole.
    """
    for rank, at, begin, end in ranges:
        partition = partitions[rank]
        if partition is None:
            continue
        end = min(end, begin + partition.numel - at)
        if begin < end:
            yield Range(
                begin, end, partition.file, partition.offset + at * partition.dtype.itemsize
            )


def partition_size(total: int, dp_size: int, factor: int = 2) -> int:
    """Return P, the number of elements in each rank's partition, for a group of `total` elements
    that is padded to a multiple of `factor * dp_size`."""
    alignment = factor * dp_size
    return -(-total // alignment) * factor


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """The content of one rank's partition: (parameter name, start in the partition, number of
    elements) in order, and the gaps between them as (start, number of elements).
    """

    parts: Sequence[tuple[str, int, int]]
    gaps: Sequence[tuple[int, int]]


def partition_contents(geometry: FlatLayout) -> list[PartitionContents]:
    """Return the content of each rank's partition. Elements that belong to no parameter are gaps
    (padding).
    """
    parts: list[list[tuple[str, int, int]]] = [[] for _ in range(geometry.dp_size)]
    gaps: list[list[tuple[int, int]]] = [[] for _ in range(geometry.dp_size)]
    ends = [0] * geometry.dp_size

    def skip(rank: int, at: int) -> None:
        if at > ends[rank]:
            gaps[rank].append((ends[rank], at - ends[rank]))

    for name, shape, offset in geometry.offsets():
        for found in geometry.rank_ranges(shape, offset):
            count = found.end - found.begin
            skip(found.rank, found.partition_offset)
            parts[found.rank].append((name, found.partition_offset, count))
            ends[found.rank] = found.partition_offset + count
    for rank in range(geometry.dp_size):
        skip(rank, geometry.partition_numel)
    return [PartitionContents(*both) for both in zip(parts, gaps, strict=True)]


MUON_ROLE = "momentum_buffer"
_USES_MUON = "use_muon"


def uses_muon(options: Mapping[str, Any]) -> bool:
    """Return whether the optimizer Muon updates the parameters of a param group with these
    options.
    """
    return options.get(_USES_MUON) is True


def is_of_muon(role: str, options: Mapping[str, Any] | None) -> bool:
    """Return whether `role` is Muon's momentum in a param group with these options."""
    return role == MUON_ROLE and options is not None and uses_muon(options)


@dataclass(frozen=True, slots=True)
class WholeParameters:
    """The parameters that each rank stores whole, for a group with layout `geometry` (stages 1 and
    2).

    Muon orthogonalises whole matrices. So at stages 1 and 2 a rank's `momentum_buffer` is not a
    partition of the group's flat buffer. It has the whole momentum of each parameter that the
    partition touches, one after another and without padding. In the example above, if all three
    parameters were matrices:

        rank 0: w0 w1 w2 w3 w4 w5 b0 b1 b2 | rank 1: b0 b1 b2 v0 v1 v2 v3 v4

    Both ranks have the whole of b, with equal values. A rank with only padding has no such state.
    At stage 3, and if the optimizer is offloaded to the CPU, the momenta are partitioned like all
    other state.

    Source: DeepSpeed 0.19.8 `runtime/zero/stage_1_and_2.py`: `get_partition_info`,
    `_muon_momentum_buffer`, `_apply_muon_updates_cpu_offload`.
    """

    geometry: FlatLayout

    def of_rank(self, rank: int) -> list[tuple[str, tuple[int, ...], int]]:
        """Return (name, shape, offset in elements) of each parameter that a rank's buffer
        contains.
        """
        found, at = [], 0
        for name, shape, offset in self.geometry.offsets():
            ranges = self.geometry.rank_ranges(shape, offset)
            if any(each.rank == rank for each in ranges):
                found.append((name, shape, at))
                at += prod(shape)
        return found

    def numel(self, rank: int) -> int:
        """Return the number of elements in a rank's buffer."""
        return sum(prod(shape) for _, shape, _ in self.of_rank(rank))

    def tensors(
        self, dtype: DType, buffers: Sequence[FlatPartition | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of each parameter, made from one buffer for each rank (None: the
        buffer is missing).

        A parameter that several ranks store has replicas.
        """
        chunks: dict[str, list[Chunk]] = {name: [] for name in self.geometry.shapes}
        for rank, buffer in enumerate(buffers):
            for name, shape, at in self.of_rank(rank) if buffer is not None else ():
                assert buffer is not None
                offset = buffer.offset + at * dtype.itemsize
                chunks[name].append(Chunk(Box.whole(shape), buffer.file, offset))
        for name, shape in self.geometry.shapes.items():
            yield name, Tensor(dtype, shape, chunks[name])
