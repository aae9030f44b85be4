"""Page-locked host memory, which the GPU copies by itself: its pages stay in RAM.

torch's pinned memory has sizes of powers of two, which wastes up to half of it. CUDA locks complete
pages, and refuses a locked page: of two heap buffers that share a page, only one could be locked.
So tensors are cut from mappings, which begin and end at page boundaries and are locked once.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

CHUNK_BYTES = 16 << 20
"""Size of a mapping that smaller tensors share."""
LARGE_BYTES = 1 << 20
"""Least size in bytes of a tensor with separate pages: it wastes only the rest of its last page."""
ALIGNMENT = 256
"""Alignment of tensors in a chunk, as in torch's allocators on a GPU."""


class LockFailed(Exception):
    """The pages cannot be locked; `status` is CUDA's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class LockedPages(mmap.mmap):
    """Pages of anonymous memory that are locked until nothing refers to them."""

    unlock: Callable[[], object] | None = None

    def __new__(cls, size: int) -> LockedPages:
        return super().__new__(cls, -1, size)

    def __del__(self) -> None:
        # Before the memory is unmapped: a finalizer of the object would come after that.
        if self.unlock is not None:
            self.unlock()


class PinnedArena:
    """Locked memory for tensors, each with a separate storage until it is freed.

    `runtime` is CUDA's, None for that of torch. `take_error` clears the error that CUDA keeps for
    the next check.
    """

    def __init__(self, runtime: Any = None, take_error: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._take_error = take_error or _take_error
        self._chunk: LockedPages | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that is not initialised.

        Raises:
            LockFailed: no more pages may be locked.
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
    """Clear CUDA's kept error with a dummy kernel.

    CUDA keeps an error for the next check, which would blame a correct kernel, and torch has no
    call to clear it.
    """
    with suppress(RuntimeError):
        torch.ones((), device="cuda").add_(1)
