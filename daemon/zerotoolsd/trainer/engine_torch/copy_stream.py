"""Copies between the device and the host, concurrently with the computation on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from zerotoolsd.trainer.engine_torch.gradients import local_norm


class CopyStream(Protocol):
    """Copies in the order of the calls."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy from the device, after `source` has been computed."""

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Add to the data that was copied to `target`, and return the norm of the sum.

        It is a scalar on the device, which may read it after `wait_on_device`.
        """

    def wait_on_host(self) -> None:
        """Wait until all copies to the host are there, for it to read."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to the device; `source` stays as it is until the next `to_host` into it."""

    def wait_on_device(self) -> None:
        """Let the device wait for all requested copies before further work; the host does not
        wait."""


class DirectCopy:
    """One memory, or one device: a copy is done when it returns."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy; see `CopyStream.to_host`."""
        target.copy_(source)

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Add; see `CopyStream.add_to_host`."""
        return local_norm(target.add_(source))

    def wait_on_host(self) -> None:
        """Do nothing: copies are complete at once."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy; see `CopyStream.to_device`."""
        target.copy_(source)

    def wait_on_device(self) -> None:
        """Do nothing: copies are complete at once."""


class CudaCopyStream:
    """Copies in a separate CUDA stream. Tensors of the host are pinned, else copies block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._last_to_host: Any = None

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy; see `CopyStream.to_host`. The memory of `source` is not reused before the copy."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        self._last_to_host = self._stream.record_event()

    def add_to_host(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Add; see `CopyStream.add_to_host`.

        The device adds, concurrently with the backward pass; the host would have to wait for the
        copy first.
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
        """Wait; see `CopyStream.wait_on_host`. Copies to the device are not waited for."""
        if self._last_to_host is not None:
            self._last_to_host.synchronize()

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy; see `CopyStream.to_device`."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def wait_on_device(self) -> None:
        """Wait; see `CopyStream.wait_on_device`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def make_copy_stream(device: torch.device) -> CopyStream:
    """Return the copies between the host and `device`."""
    return CudaCopyStream(device) if device.type == "cuda" else DirectCopy()
