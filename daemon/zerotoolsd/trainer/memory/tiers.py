"""The location of a run's tensors: those that survive a step are allocated at a `MemoryTier`.

The locations are the computing device, the host's memory, and files that are mapped into memory. On
a machine without GPUs device and host are the same memory, but still two locations. The ledger
records the location of each tensor, and the bytes of each kind.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory import DEVICE, DISK, HOST
from zerotools.jobs.tables.offload import OffloadSpec
from zerotoolsd.trainer.memory.page_lock import LockFailed, PinnedArena

SCRATCH, BUFFERS, START = "scratch", "buffers", "start"
"""Kinds of memory that the memory layout does not have; `start` is temporary memory for initial
weights."""


@dataclass
class Ledger:
    """Allocated bytes, by (location, kind), and their peak."""

    live: Counter[tuple[str, str]] = field(default_factory=Counter)
    peak: Counter[tuple[str, str]] = field(default_factory=Counter)
    _places: dict[int, str] = field(default_factory=dict)

    def enter(self, tensor: torch.Tensor, place: str, sort: str) -> None:
        """Record that `tensor` was allocated at `place`; its bytes count until its memory is
        freed."""
        storage, key = tensor.untyped_storage(), (place, sort)
        address, size = storage.data_ptr(), tensor.nbytes
        if not size:
            return
        self._places[address] = place
        self.live[key] += size
        self.peak[key] = max(self.peak[key], self.live[key])
        weakref.finalize(storage, self._leave, address, key, size).atexit = False

    def place_of(self, tensor: torch.Tensor) -> str | None:
        """Return the location of the memory of `tensor`, or of its base; None if unknown."""
        return self._places.get(tensor.untyped_storage().data_ptr())

    def _leave(self, address: int, key: tuple[str, str], size: int) -> None:
        self.live[key] -= size
        self._places.pop(address, None)


@dataclass(frozen=True)
class MemoryTier:
    """Memory of one kind. `device` is the device that computes with its tensors."""

    name: str
    device: torch.device
    ledger: Ledger

    def empty(self, shape: Sequence[int], dtype: torch.dtype, sort: str) -> torch.Tensor:
        """Return a tensor that is not initialised."""
        tensor = self._allocate(torch.Size(shape), dtype)
        self.ledger.enter(tensor, self.name, sort)
        return tensor

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, sort: str) -> torch.Tensor:
        """Return a tensor of zeros."""
        return self.empty(shape, dtype, sort).zero_()

    def _allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


@dataclass(frozen=True)
class PinnedTier(MemoryTier):
    """Host memory that a GPU copies by itself, while both continue."""

    arena: PinnedArena = field(default_factory=PinnedArena)

    def _allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        try:
            return self.arena.empty(shape, dtype)
        except LockFailed as error:
            raise BadRequest(
                f"offload: {shape.numel() * dtype.itemsize} bytes of host memory cannot be "
                f"pinned (CUDA error {error.status}): set offload.pin_memory = false, or free "
                "host memory, or raise the job's memory limit (ulimit -l does not count such "
                "pages)"
            ) from None


@dataclass(frozen=True)
class MappedTier(MemoryTier):
    """Files in `directory`, mapped into memory: the kernel keeps in RAM as much as fits.

    A file is unlinked as soon as it is mapped. So its space is free again at any end of the
    process, and no file is left.
    """

    directory: Path

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, sort: str) -> torch.Tensor:
        """Return a tensor of zeros: a new file reads as zeros, and need not be written."""
        return self.empty(shape, dtype, sort)

    def _allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        path = self.directory / f".zerotools-{os.getpid()}-{id(self)}"
        try:
            _make_file(path, shape.numel() * dtype.itemsize)
            flat: torch.Tensor = torch.from_file(
                str(path), shared=True, size=shape.numel(), dtype=dtype
            )
            path.unlink()
        except OSError as error:
            path.unlink(missing_ok=True)
            raise BadRequest(
                f"offload.path: {self.directory} cannot hold the optimizer's state: "
                f"{error.strerror}"
            ) from None
        return flat.view(shape)


@dataclass(frozen=True)
class MemoryTiers:
    """The tiers of one rank. `state` holds the optimizer's state, and the masters; `transfer` holds
    data between the device and `state`."""

    device: MemoryTier
    host: MemoryTier
    transfer: MemoryTier
    state: MemoryTier
    pins: bool = False
    """Whether host memory is pinned: `offload.pin_memory`, and the device is a GPU."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of all tiers."""
        return self.device.ledger


def make_memory(
    device: torch.device, state: str = DEVICE, offload: OffloadSpec | None = None
) -> MemoryTiers:
    """Return a rank's tiers with optimizer state in the tier `state`, on disk in `offload.path`.

    Raises:
        BadRequest: `offload.path` cannot be written to.
    """
    offload, ledger = offload or OffloadSpec(), Ledger()
    pins = offload.pin_memory and device.type == "cuda"
    place = MemoryTier(DEVICE, device, ledger)
    host = MemoryTier(HOST, torch.device("cpu"), ledger)
    transfer = PinnedTier(HOST, host.device, ledger) if pins else host
    if state == DEVICE:
        return MemoryTiers(place, host, place, place, pins)
    if state == HOST:
        return MemoryTiers(place, host, transfer, host, pins)
    assert offload.path is not None
    mapped = MappedTier(DISK, host.device, ledger, Path(offload.path))
    return MemoryTiers(place, host, transfer, mapped, pins)


def _make_file(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A file with holes would end the process with SIGBUS when the disk is full.
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
