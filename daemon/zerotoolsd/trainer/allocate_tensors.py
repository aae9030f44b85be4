"""Allocates the memory of a rank's tensors in tiers: the device, host memory, or mapped files.

Tensors that live longer than a step are allocated in a `MemoryTier`. On a machine without GPUs, the
device and the host are two tiers, although they are the same memory. The ledger records the tier of
each tensor, and the number of bytes of each kind of data, such as weights or gradients.
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
from zerotools.core.training_memory_layout import DEVICE, DISK, HOST
from zerotools.jobs.jobfile_tables.offload import OffloadSpec

CHUNK_BYTES = 16 << 20
"""Size in bytes of a mapping that several small tensors share."""
LARGE_BYTES = 1 << 20
"""A tensor of at least this size in bytes gets its own mapping.

Only the unused rest of its last page is wasted.
"""
ALIGNMENT = 256
"""Alignment of tensors in a shared mapping, in bytes, as in torch's GPU allocators."""


class LockFailed(Exception):
    """CUDA cannot lock the memory pages. `status` is CUDA's error number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class LockedPages(mmap.mmap):
    """Pages of anonymous memory that are locked in RAM until no object refers to them."""

    unlock: Callable[[], object] | None = None

    def __new__(cls, size: int) -> LockedPages:
        return super().__new__(cls, -1, size)

    def __del__(self) -> None:
        # Before the memory is unmapped: a finalizer of the object would come after that.
        if self.unlock is not None:
            self.unlock()


class PinnedArena:
    """Allocates tensors in page-locked host memory.

    A GPU can copy from such memory while the CPU continues. torch rounds the sizes of pinned memory
    up to powers of two, which wastes up to half of the memory. CUDA locks whole pages, and refuses
    to lock a page twice. So this class allocates mappings, which do not share pages with other
    data, locks each mapping once, and places tensors in the mappings.

    `runtime` is the CUDA runtime (None: torch's CUDA runtime). `take_error` clears the error that
    CUDA would otherwise report at its next check.
    """

    def __init__(self, runtime: Any = None, take_error: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._clear_error = take_error or _clear_cuda_error
        self._chunk: LockedPages | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor without values, in page-locked memory.

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
            self._clear_error()
            raise LockFailed(status)
        pages.unlock = lambda: runtime.cudaHostUnregister(address)
        return pages


def _cut(pages: LockedPages, offset: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    # It refers to the pages, which so outlive it.
    flat: torch.Tensor = torch.frombuffer(pages, dtype=dtype, count=shape.numel(), offset=offset)
    return flat.view(shape)


def _clear_cuda_error() -> None:
    """Clear the error that CUDA stores, by running a small kernel.

    CUDA would report the error for the next kernel, although this kernel is correct. torch has no
    function that clears the error.
    """
    with suppress(RuntimeError):
        torch.ones((), device="cuda").add_(1)


SCRATCH, BUFFERS, START = "scratch", "buffers", "start"
"""Kinds of data that `MemoryLayout` does not have. `start` is temporary memory for the computation
of initial weights.
"""


@dataclass
class Ledger:
    """Records how many bytes are allocated.

    `live` has the bytes that are allocated now, and `peak` the largest value of `live` so far.
    Their keys are (name of the tier, kind of data). The kind is for example weights or gradients.
    """

    live: Counter[tuple[str, str]] = field(default_factory=Counter)
    peak: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tiers: dict[int, str] = field(default_factory=dict)

    def enter(self, tensor: torch.Tensor, tier: str, kind: str) -> None:
        """Record that `tensor` was allocated in the tier `tier`, for data of the kind `kind`.

        Its bytes are counted until its memory is freed.
        """
        storage, key = tensor.untyped_storage(), (tier, kind)
        address, size = storage.data_ptr(), tensor.nbytes
        if not size:
            return
        self._tiers[address] = tier
        self.live[key] += size
        self.peak[key] = max(self.peak[key], self.live[key])
        weakref.finalize(storage, self._leave, address, key, size).atexit = False

    def tier_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the tier that has the memory of `tensor`; None if unknown.

        A view has the tier of its base tensor.
        """
        return self._tiers.get(tensor.untyped_storage().data_ptr())

    def _leave(self, address: int, key: tuple[str, str], size: int) -> None:
        self.live[key] -= size
        self._tiers.pop(address, None)


@dataclass(frozen=True)
class MemoryTier:
    """A kind of memory in which tensors are allocated.

    Operations on these tensors run on `device`.
    """

    name: str
    device: torch.device
    ledger: Ledger

    def empty(self, shape: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
        """Return a tensor without values. The ledger counts its bytes as `kind`."""
        tensor = self._allocate(torch.Size(shape), dtype)
        self.ledger.enter(tensor, self.name, kind)
        return tensor

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
        """Return a tensor of zeros. The ledger counts its bytes as `kind`."""
        return self.empty(shape, dtype, kind).zero_()

    def _allocate(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


@dataclass(frozen=True)
class PinnedTier(MemoryTier):
    """Page-locked host memory. A GPU can copy from such memory while the CPU continues."""

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
    """Files in `directory` that are mapped into memory.

    The kernel keeps as much of the files in RAM as fits. A file is deleted as soon as it is mapped,
    so no file is left when the process ends.
    """

    directory: Path

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
        """Return a tensor of zeros. No zeros are written, because a new file reads as zeros."""
        return self.empty(shape, dtype, kind)

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
    """The memory tiers of one rank.

    `state` holds the optimizer's state and the master weights. `transfer` holds data that is copied
    between the device and `state`.
    """

    device: MemoryTier
    host: MemoryTier
    transfer: MemoryTier
    state: MemoryTier
    pins: bool = False
    """True if host memory is pinned: `offload.pin_memory` is true, and the device is a GPU."""

    @property
    def ledger(self) -> Ledger:
        return self.device.ledger


def make_memory(
    device: torch.device, state: str = DEVICE, offload: OffloadSpec | None = None
) -> MemoryTiers:
    """Return the memory tiers of a rank.

    The optimizer's state is in the tier that `state` names: the device, the host, or the disk.
    Files on the disk are in `offload.path`.

    Raises:
        BadRequest: `offload.path` cannot be written to.
    """
    offload, ledger = offload or OffloadSpec(), Ledger()
    pins = offload.pin_memory and device.type == "cuda"
    device_tier = MemoryTier(DEVICE, device, ledger)
    host = MemoryTier(HOST, torch.device("cpu"), ledger)
    transfer = PinnedTier(HOST, host.device, ledger) if pins else host
    if state == DEVICE:
        return MemoryTiers(device_tier, host, device_tier, device_tier, pins)
    if state == HOST:
        return MemoryTiers(device_tier, host, transfer, host, pins)
    assert offload.path is not None
    mapped = MappedTier(DISK, host.device, ledger, Path(offload.path))
    return MemoryTiers(device_tier, host, transfer, mapped, pins)


def _make_file(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A file with holes would end the process with SIGBUS when the disk is full.
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
