"""Keeps fp32 master weights in another memory than the model's weights. ZeRO-Offload and stage 1
use this.

The model's weights are on the device, in 16 bits (in fp32 for fp32 training). For each weight, a
rank keeps the fp32 master of the rows that it updates, in the memory tier of the optimizer's state.
In the backward pass, the gradients of a block are reduced. Then this rank's rows of these gradients
are copied to a buffer next to the masters, or added to the gradients of earlier micro batches
there, and the gradients on the device are freed. When the global norm is known, the optimizer
updates the masters one bucket (group of weights) at a time. While it updates a bucket, the weights
of the previous bucket are copied to the device, through the same buffers.

Checkpoints hold the masters. A frozen weight has a master only if it is kept in fp32. For a weight
without a master, checkpoints hold the model's own weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from zerotools.core.training_memory_layout import (
    GRADIENTS,
    MASTERS,
    UPDATE_BUCKET_BYTES,
    MemoryLayout,
)
from zerotoolsd.trainer.allocate_tensors import SCRATCH, TORCH_DTYPES, MemoryTiers
from zerotoolsd.trainer.engine_torch.reduce_and_update import (
    RowPartition,
    combine_norms,
    local_norm,
    local_tensor,
    reduction_of,
)
from zerotoolsd.trainer.model.sharding import REPLICATE, wrap_local


class MasterWeights:
    """The fp32 master weights of a model's parameters. Implements `UpdatePath`."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        memory: MemoryTiers,
        layout: MemoryLayout,
        bucket_bytes: int = UPDATE_BUCKET_BYTES,
    ) -> None:
        """Allocate the masters, without values, as `tensors`.

        `parameters` are all parameters of the model. At most `bucket_bytes` bytes are updated at a
        time.
        """
        self._parameters = parameters
        self._memory = memory
        self._gradients_dtype = TORCH_DTYPES[layout.gradients_dtype]
        self._bucket_bytes = bucket_bytes
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        frozen = {
            name: parameter
            for name, parameter in parameters.items()
            if not parameter.requires_grad and layout.has_master(is_trained=False)
        }
        self._is_sharded = layout.is_sharded
        cuts_rows = layout.stage == 1 and layout.is_sharded
        self._cut = _partition(trained) if cuts_rows and trained else None
        self._cut_frozen = _partition(frozen) if cuts_rows and frozen else None
        kept = (name for name in parameters if name in trained or name in frozen)
        self.tensors = {name: self._master(name) for name in kept}
        self.weights = {name: nn.Parameter(self.tensors[name]) for name in trained}
        self.reduction = reduction_of(self.weights, memory.device.device)
        self._buffers = {name: self._buffer(name) for name in trained}
        self._scratch: torch.Tensor | None = None
        self._norms: dict[str, torch.Tensor] = {}
        offloaded = memory.state is not memory.device
        self._copies: CopyStream = (
            make_copy_stream(memory.device.device) if offloaded else DirectCopy()
        )
        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(partial(self._copy_gradient, name))

    def copy_to_model(self) -> None:
        """Copy the masters to the model's weights. All ranks call it together."""
        with torch.no_grad():
            for name, master in self.tensors.items():
                self._rows(name).copy_(local_tensor(master))
            for cut in (self._cut, self._cut_frozen):
                if cut is not None:
                    cut.share()

    def buckets(self) -> list[list[str]]:
        found: list[list[str]] = []
        room = 0
        for name, weight in self.weights.items():
            size = weight.numel() * weight.itemsize
            if not found or size > room:
                found.append([])
                room = self._bucket_bytes
            found[-1].append(name)
            room -= size
        return found

    def received(self) -> list[str]:
        return [name for name in self.weights if name in self._norms]

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._norms.pop(name, None)

    def norm(self) -> torch.Tensor:
        """Return the global norm, from the norms that the device computed when it reduced each
        gradient.
        """
        self._copies.wait_on_device()
        # FSDP always reduces in the same order; autograd guarantees no order.
        order = self._norms if self._is_sharded else self.received()
        return combine_norms([self._norms[name] for name in order], self.reduction)

    def fetch(self, names: Iterable[str], factor: float) -> None:
        self._copies.wait_on_host()
        free = 0
        for name in names:
            if name not in self._norms:
                continue
            gradient = self._buffers[name]
            if gradient.dtype != torch.float32:
                room = self._scratch_buffer()[free : free + gradient.numel()]
                free += gradient.numel()
                gradient = room.view(gradient.shape).copy_(gradient)
            if factor != 1.0:
                gradient.mul_(factor)
            self.weights[name].grad = _like(self.tensors[name], gradient)

    def store(self, names: Iterable[str]) -> None:
        for name in names:
            if self.weights[name].grad is not None:
                self.weights[name].grad = None
                rows = self._rows(name)
                # A buffer of fp32 sums is longer than the weights that leave through it.
                flat = self._buffers[name].view(-1).view(rows.dtype)[: rows.numel()]
                buffer = flat.view(rows.shape).copy_(local_tensor(self.tensors[name]))
                self._copies.to_device(buffer, rows)

    def finish(self) -> None:
        self._copies.wait_on_device()
        if self._cut is not None:
            self._cut.share()
        self._norms.clear()

    def discard(self) -> None:
        self._norms.clear()

    def _copy_gradient(self, name: str, weight: nn.Parameter) -> None:
        # FSDP calls it after the reduction of the gradient: on CUDA, in the same stream. Without
        # FSDP, autograd calls it, in the stream of the backward pass.
        gradient = weight.grad
        assert gradient is not None
        rows = local_tensor(gradient if self._cut is None else self._cut.rows_of(gradient))
        if name in self._norms:
            self._norms[name] = self._copies.add_to_host(rows, self._buffers[name])
        else:
            self._norms[name] = local_norm(rows)
            self._copies.to_host(rows, self._buffers[name])
        weight.grad = None

    def _rows(self, name: str) -> torch.Tensor:
        """Return this rank's rows of the model's weight `name`, as a view.

        Call it each time, because FSDP may replace the memory of the weight in the first step.
        """
        for cut in (self._cut, self._cut_frozen):
            if cut is not None and name in cut.rows:
                return local_tensor(cut.rows[name]).detach()
        return local_tensor(self._parameters[name]).detach()

    def _master(self, name: str) -> torch.Tensor:
        parameter = self._parameters[name]
        memory = self._memory.state.empty(self._rows(name).shape, torch.float32, MASTERS)
        if not isinstance(parameter, DTensor):
            return memory
        mesh, placements = parameter.device_mesh, parameter.placements
        if self._cut is not None or self._cut_frozen is not None:
            mesh, placements = mesh[REPLICATE], (Shard(0),)
        return wrap_local(memory, mesh, placements, parameter.shape)

    def _buffer(self, name: str) -> torch.Tensor:
        rows = self._rows(name)
        dtype = torch.promote_types(self._gradients_dtype, rows.dtype)
        return self._memory.transfer.empty(rows.shape, dtype, GRADIENTS)

    def _scratch_buffer(self) -> torch.Tensor:
        if self._scratch is None:
            sizes = {name: buffer.numel() for name, buffer in self._buffers.items()}
            most = max(sum(sizes[name] for name in names) for names in self.buckets())
            place = self._memory.device
            if self._memory.state is not place:
                place = self._memory.host
            self._scratch = place.empty((most,), torch.float32, SCRATCH)
        return self._scratch


def _partition(parameters: Mapping[str, nn.Parameter]) -> RowPartition:
    mesh = next(iter(parameters.values())).device_mesh[REPLICATE]
    return RowPartition(parameters, mesh)


def _like(master: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    if not isinstance(master, DTensor):
        return memory
    return wrap_local(memory, master.device_mesh, master.placements, master.shape)


class CopyStream(Protocol):
    """Copies tensors between the device and the host, in the order of the calls, without
    blocking.
    """

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Start to copy `source`, on the device, to `target`, on the host, after `source` is
        computed.
        """

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Start to add `source`, on the device, to `target`, on the host.

        Returns the norm of the sum, a scalar on the device. Use it after `wait_on_device`.
        """

    def wait_on_host(self) -> None:
        """Let the host wait until all copies to the host are complete."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Start to copy `source`, on the host, to `target`, on the device.

        Before the copy is complete, only `to_host` may change `source`, because it waits for this
        copy.
        """

    def wait_on_device(self) -> None:
        """Let the device wait until all copies are complete. The host does not wait."""


class DirectCopy:
    """Implements `CopyStream` without a separate CUDA stream. All later operations see the copy."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return local_norm(target.add_(source))

    def wait_on_host(self) -> None:
        """Do nothing: each copy was complete when its call returned."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def wait_on_device(self) -> None:
        """Do nothing: each copy was complete when its call returned."""


class CudaCopyStream:
    """Implements `CopyStream` with a separate CUDA stream. Host tensors must be pinned, or copies
    block.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._last_to_host: Any = None

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Start to copy `source` to `target`. The memory of `source` is not reused before the copy
        is complete.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        self._last_to_host = self._stream.record_event()

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Start to add `source` to `target`, and return the norm of the sum.

        The sum is computed on the device, because the host would have to wait for the copy first.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            total = target.to(self._device, non_blocking=True).add_(source)
            norm = local_norm(total)
            target.copy_(total, non_blocking=True)
        source.record_stream(self._stream)
        self._last_to_host = self._stream.record_event()
        return norm

    def wait_on_host(self) -> None:
        """Let the host wait for copies to the host. Copies to the device may continue."""
        if self._last_to_host is not None:
            self._last_to_host.synchronize()

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def wait_on_device(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def make_copy_stream(device: torch.device) -> CopyStream:
    """Return the `CopyStream` between the host and `device`."""
    return CudaCopyStream(device) if device.type == "cuda" else DirectCopy()
