"""Bytes of tensors that are alive, counted operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class LiveBytes(TorchDispatchMode):
    """Counts what operations allocate while it is entered; not the tensors that are `given`.

    `peak` is the most at a time, `now` what is alive. What an operation takes and frees by itself
    is not seen.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self.now = 0
        self._given = [tensor.untyped_storage() for tensor in given]  # else addresses come again
        self._sizes = {storage._cdata: 0 for storage in self._given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count its results."""
        found = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._see, found)
        return found

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or not storage.nbytes():
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
