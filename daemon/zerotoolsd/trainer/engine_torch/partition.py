"""ZeRO-1: every rank has all weights and gradients, updates its own rows, and sends them to all.

The rows are those that FSDP2 would give the rank: a dimension 0 of n rows is cut into parts of
ceil(n / ranks), the last ones short or empty. So the optimizer's state has the names, shapes and
cut of stages 2 and 3, is saved by all ranks, and loads at any stage and number of ranks. (torch's
ZeroRedundancyOptimizer gives complete tensors to ranks, so a large embedding goes to one of them.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zerotoolsd.trainer.tensor_parallel.whole_values import gather_flat

BUCKET_BYTES = 16 << 20
"""Bytes that a rank sends at a time; it receives as many from each."""


@dataclass(frozen=True)
class _Piece:
    """Elements [first, first + length) of each rank's part of a weight; a part has `part` of them,
    those beyond the weight's end included."""

    flat: torch.Tensor
    part: int
    first: int
    length: int

    def of(self, rank: int) -> torch.Tensor:
        """Return the piece of `rank`'s part, shorter at the end of the weight; a view."""
        start = rank * self.part + self.first
        return self.flat[start : start + self.length]


class RowPartition:
    """The rows of whole weights, by rank. `rows` are views of the weights that are this rank's."""

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        mesh: DeviceMesh,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Cut the weights, DTensors that each rank holds in full, over the one-dimensional `mesh`.

        At most `bucket_bytes` are sent at a time.
        """
        self._weights = weights
        self._mesh = mesh
        self.rows = {
            name: nn.Parameter(self.rows_of(weight.detach())) for name, weight in weights.items()
        }
        self._buckets = list(_buckets(list(weights.values()), mesh.size(), bucket_bytes))

    def take_gradients(self) -> None:
        """Give the rows the gradients of the whole weights."""
        for name, weight in self._weights.items():
            self.rows[name].grad = None if weight.grad is None else self.rows_of(weight.grad)

    def share(self) -> None:
        """Give every rank every row; all ranks call it together."""
        for bucket in self._buckets:
            self._exchange(bucket)

    def _exchange(self, bucket: Sequence[_Piece]) -> None:
        rank, ranks = self._mesh.get_local_rank(), self._mesh.size()
        length = sum(piece.length for piece in bucket)
        mine = bucket[0].flat.new_zeros(length)
        for piece, place in _placed(bucket, mine):
            part = piece.of(rank)
            place[: part.numel()].copy_(part)
        everyone = gather_flat(mine, self._mesh.get_group())
        for other in range(ranks):
            if other == rank:
                continue
            for piece, place in _placed(bucket, everyone[other * length : (other + 1) * length]):
                part = piece.of(other)
                part.copy_(place[: part.numel()])

    def rows_of(self, whole: torch.Tensor) -> DTensor:
        assert isinstance(whole, DTensor)
        shape, offset = compute_local_shape_and_global_offset(whole.shape, self._mesh, (Shard(0),))
        local = whole.to_local().narrow(0, min(offset[0], whole.shape[0]), shape[0])
        return DTensor.from_local(
            local,
            self._mesh,
            (Shard(0),),
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


def _placed(
    bucket: Sequence[_Piece], memory: torch.Tensor
) -> Iterator[tuple[_Piece, torch.Tensor]]:
    start = 0
    for piece in bucket:
        yield piece, memory[start : start + piece.length]
        start += piece.length


def _buckets(weights: Sequence[nn.Parameter], ranks: int, most: int) -> Iterator[list[_Piece]]:
    """Yield all pieces of all weights, a bounded number of bytes at a time."""
    bucket: list[_Piece] = []
    room = most
    for piece in _pieces(weights, ranks, most):
        size = piece.length * piece.flat.itemsize
        if bucket and (size > room or piece.flat.dtype != bucket[0].flat.dtype):
            yield bucket
            bucket, room = [], most
        bucket.append(piece)
        room -= size
    if bucket:
        yield bucket


def _pieces(weights: Sequence[nn.Parameter], ranks: int, most: int) -> Iterator[_Piece]:
    for weight in weights:
        flat = weight.detach().to_local().view(-1)
        part = -(-weight.shape[0] // ranks) * (flat.numel() // weight.shape[0])
        longest = most // flat.itemsize
        for first in range(0, part, longest):
            yield _Piece(flat, part, first, min(longest, part - first))
