"""State that each rank keeps for whole parameters: those that its partition has a part of.

Muon orthogonalises whole matrices. So at stages 1 and 2 a rank's `momentum_buffer` is not a
partition of the group's flat buffer. It is the momenta of all parameters that the partition
touches, each whole, one after another and without padding. With the example of `flat_layout`, if
all three were matrices:

    rank 0: w0 w1 w2 w3 w4 w5 b0 b1 b2 | rank 1: b0 b1 b2 v0 v1 v2 v3 v4

Both ranks have the whole of b, and the same values. A rank with only padding has no such state. If
the optimizer is offloaded to the CPU, and at stage 3, it is a partition like all others.

Source: DeepSpeed 0.19.8 `runtime/zero/stage_1_and_2.py`: `get_partition_info`,
`_muon_momentum_buffer`, `_apply_muon_updates_cpu_offload`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import DType
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout
from zerotools.formats.deepspeed.schema.flat_partition import FlatPartition

MUON_ROLE = "momentum_buffer"
_USES_MUON = "use_muon"


def uses_muon(options: Mapping[str, Any]) -> bool:
    """Return whether Muon updates the parameters of a param group with these options."""
    return options.get(_USES_MUON) is True


def is_of_muon(role: str, options: Mapping[str, Any] | None) -> bool:
    """Return whether state of a param group with these options is Muon's momentum."""
    return role == MUON_ROLE and options is not None and uses_muon(options)


@dataclass(frozen=True, slots=True)
class WholeParameters:
    """The whole parameters that each rank of `geometry`, a group of stages 1 and 2, keeps."""

    geometry: FlatLayout

    def of_rank(self, rank: int) -> list[tuple[str, tuple[int, ...], int]]:
        """Return (name, shape, offset) of the parameters of a rank, in its buffer."""
        found, at = [], 0
        for name, shape, offset in self.geometry.offsets():
            ranges = self.geometry.rank_ranges(shape, offset)
            if any(each.rank == rank for each in ranges):
                found.append((name, shape, at))
                at += prod(shape)
        return found

    def numel(self, rank: int) -> int:
        """Return elements of a rank's buffer."""
        return sum(prod(shape) for _, shape, _ in self.of_rank(rank))

    def tensors(
        self, dtype: DType, buffers: Sequence[FlatPartition | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters by name, out of one buffer per rank; None if one is missing.
        Parameters of several ranks are replicas."""
        chunks: dict[str, list[Chunk]] = {name: [] for name in self.geometry.shapes}
        for rank, buffer in enumerate(buffers):
            for name, shape, at in self.of_rank(rank) if buffer is not None else ():
                assert buffer is not None
                offset = buffer.offset + at * dtype.itemsize
                chunks[name].append(Chunk(Box.whole(shape), buffer.file, offset))
        for name, shape in self.geometry.shapes.items():
            yield name, Tensor(dtype, shape, chunks[name])
