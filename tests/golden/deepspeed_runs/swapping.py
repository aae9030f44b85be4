"""State on NVMe without DeepSpeed's operator for it, which takes minutes to compile.

All of DeepSpeed's Python runs: what it swaps, when, and under which names. The operator alone has a
stand-in, which reads and writes at once. Parts of 80 bytes are swapped, not only those of 1 MiB.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

SMALLEST_BYTES = 80
"""The least that is swapped. It is the `block_size` of a case, too."""


class PlainFiles:
    """What `aio_handle` does."""

    def __init__(self, **_: Any) -> None:
        self._locked: dict[int, Tensor] = {}
        self._pending = 0

    def new_cpu_locked_tensor(self, numel: int, like: Tensor) -> Tensor:
        new = torch.empty(numel, dtype=like.dtype)
        self._locked[new.untyped_storage().data_ptr()] = new
        return new

    def free_cpu_locked_tensor(self, tensor: Tensor) -> None:
        self._locked.pop(tensor.untyped_storage().data_ptr(), None)

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._locked

    def async_pread(self, buffer: Tensor, path: str, offset: int) -> int:
        content = bytearray(Path(path).read_bytes()[offset:][: buffer.nbytes])
        buffer.copy_(torch.frombuffer(content, dtype=buffer.dtype))
        self._pending += 1
        return 0

    def async_pwrite(self, buffer: Tensor, path: str, offset: int) -> int:
        assert not offset
        Path(path).write_bytes(buffer.numpy().tobytes())
        self._pending += 1
        return 0

    def wait(self) -> int:
        done, self._pending = self._pending, 0
        return done


def stand_in() -> None:
    """Puts the stand-in where DeepSpeed looks."""
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.runtime.swap_tensor import optimizer_utils

    AsyncIOBuilder.is_compatible = lambda self, verbose=False: True
    AsyncIOBuilder.load = lambda self, verbose=False: SimpleNamespace(aio_handle=PlainFiles)
    optimizer_utils.MIN_AIO_BYTES = SMALLEST_BYTES
