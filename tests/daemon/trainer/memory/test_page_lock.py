"""Pinned memory, by a runtime that locks pages as CUDA does: whole, and none twice."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import pytest

pytestmark = pytest.mark.torch
ALREADY = 712
"""cudaErrorHostMemoryAlreadyRegistered."""


class Runtime:
    """CUDA's, as far as locks go; `most` bytes may be locked."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most
        self.locked: dict[int, int] = {}

    def pages(self) -> set[int]:
        """All that are locked."""
        return {page for address, size in self.locked.items() for page in _pages(address, size)}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.pages() & set(_pages(address, size)):
            return ALREADY
        if sum(self.locked.values()) + size > self.most:
            return 2
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]


def _pages(address: int, size: int) -> range:
    return range(address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE))


def arena_of(runtime: Runtime, taken: list[int]) -> Any:
    from zerotoolsd.trainer.memory.page_lock import PinnedArena

    return PinnedArena(runtime, lambda: taken.append(1))


def test_buffers_of_every_size_are_locked_and_share_no_memory() -> None:
    import torch

    runtime, taken = Runtime(), list[int]()
    arena = arena_of(runtime, taken)
    sizes = [1, 3, 1000, 5000, 300_000, 2_000_001, 7] * 3
    made = [arena.empty((size,), torch.bfloat16).fill_(n) for n, size in enumerate(sizes)]
    for number, tensor in enumerate(made):
        assert bool((tensor == number).all())
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert set(_pages(tensor.data_ptr(), tensor.nbytes)) <= runtime.pages()
    for address, size in runtime.locked.items():
        assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
    assert arena.empty((0, 4), torch.float32).shape == (0, 4)
    assert taken == []


def test_memory_is_locked_as_long_as_a_tensor_is_there() -> None:
    import torch

    runtime = Runtime()
    arena = arena_of(runtime, [])
    large, small = arena.empty((1 << 20,), torch.float32), arena.empty((8,), torch.float32)
    part = large[3:].detach()
    del large, arena
    gc.collect()
    assert len(runtime.locked) == 2
    del part
    gc.collect()
    assert len(runtime.locked) == 1
    assert small.fill_(1).sum() == 8
    del small
    gc.collect()
    assert runtime.locked == {}


def test_a_lock_that_fails_leaves_no_error_behind() -> None:
    import torch

    from zerotoolsd.trainer.memory.page_lock import LockFailed

    runtime, taken = Runtime(most=0), list[int]()
    with pytest.raises(LockFailed, match="CUDA error 2"):
        arena_of(runtime, taken).empty((1000,), torch.float32)
    assert taken == [1]


def test_a_tier_that_cannot_pin_says_what_to_do() -> None:
    import torch

    from zerotools.core.errors import BadRequest
    from zerotools.core.training_memory import GRADIENTS, HOST
    from zerotoolsd.trainer.memory.tiers import Ledger, PinnedTier

    tier = PinnedTier(HOST, torch.device("cpu"), Ledger(), arena_of(Runtime(most=0), []))
    with pytest.raises(BadRequest, match="4000 bytes of host memory cannot be pinned"):
        tier.empty((1000,), torch.float32, GRADIENTS)
    runtime, ledger = Runtime(), Ledger()
    tier = PinnedTier(HOST, torch.device("cpu"), ledger, arena_of(runtime, []))
    made = [tier.empty((10,), torch.float32, GRADIENTS) for _ in range(3)]
    assert ledger.live[HOST, GRADIENTS] == 120
    del made[0]
    assert ledger.live[HOST, GRADIENTS] == 80
    assert {ledger.place_of(tensor) for tensor in made} == {HOST}


def test_pages_are_locked_by_torch_s_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.memory.page_lock import PinnedArena

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    tensor = PinnedArena().empty((8,), torch.float32)
    assert set(_pages(tensor.data_ptr(), tensor.nbytes)) <= runtime.pages()
