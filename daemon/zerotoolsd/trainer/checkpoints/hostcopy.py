"""A copy of a rank's tensors in host memory, to be written while training continues.

All saves of a run share one set of buffers. So host memory holds at most one copy, and its pages
are touched (and for CUDA locked) once. Each tensor has its own buffer, because DCP copies a view of
a larger storage again before it writes it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import DTensor

from zerotoolsd.trainer.checkpoints.replicas import TensorTree
from zerotoolsd.trainer.memory.page_lock import LockFailed, PinnedArena


@dataclass
class HostCopy:
    """Buffers by name. The caller may read the result of `take` until the next `take`."""

    arena: PinnedArena = field(default_factory=PinnedArena)
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def take(self, tree: TensorTree) -> TensorTree:
        """Copy `tree` to host memory, with the same names, cuts and values.

        Returns when the last value has arrived.
        """
        copied = {
            top: {name: self._copy(f"{top}.{name}", tensor) for name, tensor in branch.items()}
            for top, branch in tree.items()
        }
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return copied

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            buffer = self._buffers[name] = self._buffer_for(local)
        buffer.copy_(local.detach(), non_blocking=True)
        if not isinstance(tensor, DTensor):
            return buffer
        # from_local would move the buffer to the mesh's device.
        return DTensor(buffer, tensor._spec, requires_grad=False)

    def _buffer_for(self, local: torch.Tensor) -> torch.Tensor:
        if local.is_cuda:
            # If no more pages may be locked, the copy is slower, but correct.
            with suppress(LockFailed):
                return self.arena.empty(local.shape, local.dtype)
        return torch.empty(local.shape, dtype=local.dtype, device="cpu")
