"""A copy of a rank's tensors in host memory, to be written while training continues.

One set of buffers serves all saves of a run, so host memory holds one copy at most, and its pages
are touched (and for CUDA locked) once. A buffer belongs to one tensor: DCP copies what is a view of
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
    """Buffers by name. Until the next `take`, what `take` returned is the caller's to read."""

    arena: PinnedArena = field(default_factory=PinnedArena)
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def take(self, tree: TensorTree) -> TensorTree:
        """Copy `tree`; what comes back has the same names, cuts and values, in host memory.

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
            # Where no more pages may be locked, the copy is slower, and right.
            with suppress(LockFailed):
                return self.arena.empty(local.shape, local.dtype)
        return torch.empty(local.shape, dtype=local.dtype, device="cpu")
