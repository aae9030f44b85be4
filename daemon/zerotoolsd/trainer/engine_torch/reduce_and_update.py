"""Brings gradients to the optimizer, and updated weights back to the model.

The norm of the gradients is the norm over all ranks: each rank computes the norms of its tensors in
fp32, and their squares are summed in fp64. In fp16 training, it is the norm of the gradients times
the loss scale. The gradients are multiplied by one factor, which removes the loss scale and clips
the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zerotoolsd.trainer.model.sharding import cutting_groups
from zerotoolsd.trainer.tensor_parallel.parallel_layers import gather_flat

ROUNDING = 1e-6
"""The constant that torch's clip_grad_norm_ adds to the norm."""


@dataclass(frozen=True)
class Reduction:
    """Sums values over the ranks that hold parts of the same tensors. `groups` are the process
    groups of these ranks, and `device` is the device of the groups.
    """

    groups: Sequence[Any]
    device: torch.device

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over the ranks of `groups`."""
        if not self.groups:
            return values
        total = values.to(self.device)
        for group in self.groups:
            dist.all_reduce(total, group=group)
        return total.to(values.device)


class UpdatePath(Protocol):
    """Brings gradients to the optimizer's `weights`, and updated weights back to the model.

    After the backward passes of a step, call `norm`. To skip the update, then call `discard`. To
    update, call `fetch` and `store` for each bucket of `buckets`, and then `finish`. All ranks call
    each method together.
    """

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """The tensors that the optimizer updates, keyed by name."""

    @property
    def reduction(self) -> Reduction:
        """Sums values over the ranks that hold parts of the weights."""

    def buckets(self) -> list[list[str]]:
        """Return the weight names in groups (buckets) that are updated together; the same on every
        rank.
        """

    def received(self) -> list[str]:
        """Return the names of the weights that got gradients in this step."""

    def forget(self, names: Iterable[str]) -> None:
        """Free the gradients of the weights `names`, so that these weights are not updated."""

    def norm(self) -> torch.Tensor:
        """Return the global norm of the gradients, an fp64 scalar.

        The host does not wait for the norm. If any gradient is not finite, the norm is not finite.
        """

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Give the weights `names` their gradients, multiplied by `factor`."""

    def store(self, names: Iterable[str]) -> None:
        """Free the gradients of the weights `names`, and start to copy these updated weights to
        the model.
        """

    def finish(self) -> None:
        """Complete the update. When it returns, the model of every rank has all updated weights."""

    def discard(self) -> None:
        """Free all gradients, without an update."""


class InPlaceUpdate:
    """Implements `UpdatePath`: the optimizer updates the parameters of the model directly."""

    def __init__(self, weights: Mapping[str, nn.Parameter], device: torch.device) -> None:
        self.weights = weights
        self.reduction = reduction_of(weights, device)

    def buckets(self) -> list[list[str]]:
        return [list(self.weights)]

    def received(self) -> list[str]:
        return _with_gradients(self.weights)

    def forget(self, names: Iterable[str]) -> None:
        self.store(names)

    def norm(self) -> torch.Tensor:
        return total_norm(_gradients(self.weights.values()), self.reduction)

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Multiply the gradients, which the weights already have, by `factor`."""
        _multiply(_gradients(self.weights[name] for name in names), factor)

    def store(self, names: Iterable[str]) -> None:
        for name in names:
            self.weights[name].grad = None

    def finish(self) -> None:
        """Do nothing: the model already has the updated weights."""

    def discard(self) -> None:
        self.store(self.weights)


class PartitionedUpdate:
    """Implements `UpdatePath` for ZeRO-1 in fp32: every rank has all parameters, and updates only
    its own rows of them.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], partition: RowPartition) -> None:
        self._parameters = parameters
        self._partition = partition
        self.weights = partition.rows
        device = next(iter(parameters.values())).device
        self.reduction = reduction_of(self.weights, device)

    def buckets(self) -> list[list[str]]:
        return [list(self.weights)]

    def received(self) -> list[str]:
        return _with_gradients(self._parameters)

    def forget(self, names: Iterable[str]) -> None:
        self.store(names)

    def norm(self) -> torch.Tensor:
        """Return the global norm, computed from the rows of each rank, so that it equals the norm
        at stages 2 and 3 bit for bit.
        """
        rows = map(self._partition.rows_of, _gradients(self._parameters.values()))
        return total_norm(rows, self.reduction)

    def fetch(self, names: Iterable[str], factor: float) -> None:
        """Give this rank's rows their gradients, times `factor`."""
        self._partition.set_gradients()
        _multiply(_gradients(self.weights[name] for name in names), factor)

    def store(self, names: Iterable[str]) -> None:
        for name in names:
            self.weights[name].grad = self._parameters[name].grad = None

    def finish(self) -> None:
        """Send the updated rows of each rank to all ranks."""
        self._partition.share()

    def discard(self) -> None:
        self.store(self.weights)


def reduction_of(weights: Mapping[str, torch.Tensor], device: torch.device) -> Reduction:
    """Return the `Reduction` over the ranks that hold parts of `weights`.

    All weights must be split among the same ranks. `device` is the device of the process groups.
    """
    first = next(iter(weights.values()), None)
    return Reduction([] if first is None else cutting_groups(first), device)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `tensor`, if it is a DTensor; else `tensor` itself."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def local_norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the norm of this rank's part of `gradient`, a scalar on the device of the gradient."""
    return torch.linalg.vector_norm(local_tensor(gradient).detach(), dtype=torch.float32)


def total_norm(gradients: Iterable[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Return the norm of all `gradients` together, over all ranks of `reduction`."""
    return combine_norms([local_norm(gradient) for gradient in gradients], reduction)


def combine_norms(norms: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Return the global norm of tensors that are split over ranks. `norms` are the norms of the
    parts on this rank.
    """
    squares = torch.zeros((), dtype=torch.float64)
    if norms:
        squares = torch.stack(list(norms)).double().square().sum()
    return reduction.sum(squares).sqrt()


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor that clips gradients of norm `norm` to `max_norm`; 1 if `max_norm` is 0."""
    return min(1.0, max_norm / (norm + ROUNDING)) if max_norm else 1.0


def _with_gradients(weights: Mapping[str, nn.Parameter]) -> list[str]:
    return [name for name, weight in weights.items() if weight.grad is not None]


def _gradients(weights: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _multiply(gradients: Sequence[torch.Tensor], factor: float) -> None:
    if factor != 1.0 and gradients:
        torch._foreach_mul_([local_tensor(gradient) for gradient in gradients], factor)


BUCKET_BYTES = 16 << 20
"""Number of bytes that a rank sends at a time. It receives the same number from each other rank."""


@dataclass(frozen=True)
class _Piece:
    """The elements `first` to `first + length - 1` of every rank's part of a weight, counted from
    the beginning of the part.

    `flat` is the whole weight. It is divided into parts of `part` elements, one for each rank; the
    parts of the last ranks may reach beyond its end.
    """

    flat: torch.Tensor
    part: int
    first: int
    length: int

    def of(self, rank: int) -> torch.Tensor:
        """Return a view of this piece in the part of rank `rank`.

        At the end of the weight, the view may have fewer than `length` elements.
        """
        start = rank * self.part + self.first
        return self.flat[start : start + self.length]


class RowPartition:
    """The rows of weights that this rank updates at ZeRO-1.

    Every rank has the whole weights and gradients, updates its own rows, and sends them to all
    ranks. `rows` are views of this rank's rows. They are split as FSDP2 splits them: n rows into
    parts of ceil(n / ranks), and the last parts may be short or empty. So the optimizer's state has
    the names, shapes and parts of stages 2 and 3, and loads at any stage and number of ranks.
    (torch's ZeroRedundancyOptimizer gives whole tensors to ranks, so one rank would get a whole
    large embedding.)
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        mesh: DeviceMesh,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Split the rows of `weights` over the one-dimensional `mesh`.

        Each rank has the whole `weights` as DTensors. At most `bucket_bytes` bytes are sent at a
        time.
        """
        self._weights = weights
        self._mesh = mesh
        self.rows = {
            name: nn.Parameter(self.rows_of(weight.detach())) for name, weight in weights.items()
        }
        self._buckets = list(_buckets(list(weights.values()), mesh.size(), bucket_bytes))

    def set_gradients(self) -> None:
        """Set the gradients of this rank's rows from the gradients of the whole weights."""
        for name, weight in self._weights.items():
            self.rows[name].grad = None if weight.grad is None else self.rows_of(weight.grad)

    def share(self) -> None:
        """Send the updated rows of each rank to all ranks. All ranks call it together."""
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
    """Divide all weights into pieces, and yield groups of pieces with at most `most` bytes."""
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
