"""Copies between the device and the host, beside the computation where there is a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class CopyStream(Protocol):
    """Copies in the order in which they were asked for."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy from the device, once what computes `source` is done."""

    def wait_on_host(self) -> None:
        """Wait until all copies to the host are there, for it to read."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to the device; `source` stays as it is until the next `to_host` into it."""

    def wait_on_device(self) -> None:
        """Have the device wait for what was copied to it, before it computes anything else."""


class DirectCopy:
    """One memory, or one device: a copy is done when it returns."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.to_host`."""
        target.copy_(source)

    def wait_on_host(self) -> None:
        """As `CopyStream.wait_on_host`: it is there."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.to_device`."""
        target.copy_(source)

    def wait_on_device(self) -> None:
        """As `CopyStream.wait_on_device`: it is."""


class CudaCopyStream:
    """A CUDA stream of its own. The host's tensors are pinned, or the copies are waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._last_to_host: Any = None

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.to_host`; the memory of `source` is not used again before."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        self._last_to_host = self._stream.record_event()

    def wait_on_host(self) -> None:
        """As `CopyStream.wait_on_host`; copies to the device are not waited for."""
        if self._last_to_host is not None:
            self._last_to_host.synchronize()

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.to_device`."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def wait_on_device(self) -> None:
        """As `CopyStream.wait_on_device`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def make_copy_stream(device: torch.device) -> CopyStream:
    """Copies between the host and `device`."""
    return CudaCopyStream(device) if device.type == "cuda" else DirectCopy()
