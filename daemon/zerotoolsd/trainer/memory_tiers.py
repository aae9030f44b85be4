"""The memory of a rank's tensors: a `MemoryTier` for the device, for host memory and for mapped
files.

Tensors that live longer than a step are allocated in a tier. On a machine without GPUs, device and
host are the same memory, but two tiers. The ledger records the tier of each tensor, and the bytes
of each kind.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory import DEVICE, DISK, HOST
from zerotools.jobs.tables.offload import OffloadSpec

CHUNK_BYTES = 16 << 20
"""Size of a mapping that several small tensors share."""
LARGE_BYTES = 1 << 20
"""A tensor of at least this size in bytes has its own mapping. Only the rest of its last page is
wasted."""
ALIGNMENT = 256
"""Alignment of tensors in a shared mapping, in bytes, as in torch's GPU allocators."""


class LockFailed(Exception):
    """The pages cannot be locked. `status` is the error number of CUDA."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class LockedPages(mmap.mmap):
    """Pages of anonymous memory. They stay locked until nothing refers to them."""

    unlock: Callable[[], object] | None = None

    def __new__(cls, size: int) -> LockedPages:
        return super().__new__(cls, -1, size)

    def __del__(self) -> None:
        # Before the memory is unmapped: a finalizer of the object would come after that.
        if self.unlock is not None:
            self.unlock()


class PinnedArena:
    """Page-locked host memory for tensors. A GPU copies it by itself, while the CPU continues.

    torch's pinned memory has sizes of powers of two, which wastes up to half of it. CUDA locks
    whole pages, and refuses to lock a page twice. So two heap buffers in one page could not both be
    locked. This class cuts tensors from mappings, which begin and end at page boundaries and are
    locked once.

    `runtime` is the CUDA runtime; None for that of torch. `take_error` clears the error that CUDA
    keeps for its next check.
    """

    def __init__(self, runtime: Any = None, take_error: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._take_error = take_error or _take_error
        self._chunk: LockedPages | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor.

        Raises:
            LockFailed: no more pages can be locked.
        """
        whole = torch.Size(shape)
        size = whole.numel() * dtype.itemsize
        if not size:
            return torch.empty(whole, dtype=dtype)
        if size >= LARGE_BYTES:
            return _cut(self._lock(size), 0, whole, dtype)
        if self._chunk is None or self._used + size > len(self._chunk):
            self._chunk, self._used = self._lock(CHUNK_BYTES), 0
        tensor = _cut(self._chunk, self._used, whole, dtype)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return tensor

    def _lock(self, size: int) -> LockedPages:
        pages = LockedPages(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        runtime = torch.cuda.cudart() if self._runtime is None else self._runtime
        address = torch.frombuffer(pages, dtype=torch.uint8).data_ptr()
        status = int(runtime.cudaHostRegister(address, len(pages), 1))  # for all devices
        if status:
            self._take_error()
            raise LockFailed(status)
        pages.unlock = lambda: runtime.cudaHostUnregister(address)
        return pages


def _cut(pages: LockedPages, offset: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    # It refers to the pages, which so outlive it.
    flat: torch.Tensor = torch.frombuffer(pages, dtype=dtype, count=shape.numel(), offset=offset)
    return flat.view(shape)


def _take_error() -> None:
    """Clear the error that CUDA keeps, by running a small kernel.

    CUDA would report the error for the next kernel, which is correct. torch has no call to clear
    it.
    """
    with suppress(RuntimeError):
        torch.ones((), device="cuda").add_(1)


SCRATCH, BUFFERS, START = "scratch", "buffers", "start"
"""Kinds of memory that `MemoryLayout` does not have. `start` is temporary memory for initial
weights."""


@dataclass
class Ledger:
    """Allocated bytes by (tier, kind), and their peak."""

    live: Counter[tuple[str, str]] = field(default_factory=Counter)
    peak: Counter[tuple[str, str]] = field(default_factory=Counter)
    _places: dict[int, str] = field(default_factory=dict)

    def enter(self, tensor: torch.Tensor, place: str, sort: str) -> None:
        """Record that `tensor` was allocated in tier `place`. Its bytes count until its memory is
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
        """Return the tier of a tensor's memory; None if unknown. A view has the tier of its
        base."""
        return self._places.get(tensor.untyped_storage().data_ptr())

    def _leave(self, address: int, key: tuple[str, str], size: int) -> None:
        self.live[key] -= size
        self._places.pop(address, None)


@dataclass(frozen=True)
class MemoryTier:
    """Memory of one kind. `device` computes with its tensors."""

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
    """Page-locked host memory. A GPU copies it while the CPU continues."""

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
    """Files in `directory` that are mapped into memory. The kernel keeps as much in RAM as fits.

    A file is unlinked as soon as it is mapped. So no file is left when the process ends.
    """

    directory: Path

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, sort: str) -> torch.Tensor:
        """Return a tensor of zeros. A new file reads as zeros, so nothing is written."""
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
    """The tiers of one rank. `state` holds the optimizer's state and the master weights. `transfer`
    holds data on its way between the device and `state`."""

    device: MemoryTier
    host: MemoryTier
    transfer: MemoryTier
    state: MemoryTier
    pins: bool = False
    """Whether host memory is pinned: `offload.pin_memory` is true, and the device is a GPU."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of all tiers."""
        return self.device.ledger


def make_memory(
    device: torch.device, state: str = DEVICE, offload: OffloadSpec | None = None
) -> MemoryTiers:
    """Return the tiers of a rank. The optimizer's state is in the tier `state`; on disk, in
    `offload.path`.

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


TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
