"""Host memory that the GPU copies to and from by itself: pages that stay in RAM.

torch's own pinned memory comes in powers of two, which wastes up to half of it. CUDA locks whole
pages, and refuses a page that is locked already: of two buffers of the heap that share a page, only
one could be. So tensors are cut from mappings, which begin and end with a page and are locked once.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

CHUNK_BYTES = 16 << 20
"""What smaller tensors share."""
LARGE_BYTES = 1 << 20
"""From this size on, a tensor has pages of its own: the rest of its last page is all that it
wastes."""
ALIGNMENT = 256
"""At which tensors begin within a chunk, as those of torch's allocators on a GPU."""


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
    """Locked memory, of which tensors have their parts until they are freed; every tensor has a
    storage of its own.

    `runtime` is CUDA's, None for that of torch, and `take_error` takes the error that it keeps for
    the next who asks.
    """

    def __init__(self, runtime: Any = None, take_error: Callable[[], None] | None = None) -> None:
        self._runtime = runtime
        self._take_error = take_error or _take_error
        self._chunk: LockedPages | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that is not initialised.

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
    """CUDA keeps an error for the next check, which would blame a kernel that is all right, and
    torch has no call to take it: start one to be blamed."""
    with suppress(RuntimeError):
        torch.ones((), device="cuda").add_(1)
