"""Host memory that the GPU copies to and from by itself: pages that stay in RAM.

torch's own pinned memory comes in powers of two, which wastes up to half of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


def lock(
    tensor: torch.Tensor, runtime: Any = None, take_error: Callable[[], None] | None = None
) -> int:
    """Lock the pages of `tensor`, until its memory is freed; CUDA's status, 0 for success.

    `runtime` is CUDA's, and `take_error` takes the error that it keeps for the next who asks.
    """
    runtime = torch.cuda.cudart() if runtime is None else runtime
    storage, address = tensor.untyped_storage(), tensor.data_ptr()
    status = int(runtime.cudaHostRegister(address, tensor.nbytes, 1))  # for all devices
    if status:
        (take_error or _take_error)()
    else:
        weakref.finalize(storage, runtime.cudaHostUnregister, address).atexit = False
    return status


def _take_error() -> None:
    """CUDA keeps an error for the next check, which would blame a kernel that is all right, and
    torch has no call to take it: start one to be blamed."""
    with suppress(RuntimeError):
        torch.ones((), device="cuda").add_(1)
