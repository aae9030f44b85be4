"""Copies between the device and the host, beside the computation where there is a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class CopyStream(Protocol):
    """Copies in the order in which they were asked for."""

    def down(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy from the device, once what computes `source` is done."""

    def arrived(self) -> None:
        """Wait until everything that went down is there, for the host to read."""

    def up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to the device; `source` stays as it is until the next `down` into it."""

    def delivered(self) -> None:
        """Have the device wait for what went up before it computes anything else."""


class DirectCopy:
    """One memory, or one device: a copy is done when it returns."""

    def down(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.down`."""
        target.copy_(source)

    def arrived(self) -> None:
        """As `CopyStream.arrived`: it has."""

    def up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.up`."""
        target.copy_(source)

    def delivered(self) -> None:
        """As `CopyStream.delivered`: it is."""


class CudaCopyStream:
    """A CUDA stream of its own. The host's tensors are pinned, or the copies are waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._last_down: Any = None

    def down(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.down`; the memory of `source` is not used again before."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        self._last_down = self._stream.record_event()

    def arrived(self) -> None:
        """As `CopyStream.arrived`; what goes up meanwhile is not waited for."""
        if self._last_down is not None:
            self._last_down.synchronize()

    def up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """As `CopyStream.up`."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def delivered(self) -> None:
        """As `CopyStream.delivered`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def make_copy_stream(device: torch.device) -> CopyStream:
    """A courier between the host and `device`."""
    return CudaCopyStream(device) if device.type == "cuda" else DirectCopy()
