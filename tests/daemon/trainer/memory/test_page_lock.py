"""Page locks, by a runtime that counts them."""

from __future__ import annotations

import gc

import pytest

pytestmark = pytest.mark.torch


class Runtime:
    """CUDA's, as far as locks go."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.status:
            self.locked[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]


def test_pages_are_locked_as_long_as_their_memory_lives() -> None:
    import torch

    from zerotoolsd.trainer.memory.page_lock import lock

    runtime, taken = Runtime(), list[int]()
    tensor = torch.empty(1000)
    address = tensor.data_ptr()
    assert lock(tensor, runtime, lambda: taken.append(1)) == 0
    part = tensor[3:].detach()
    del tensor
    gc.collect()
    assert runtime.locked == {address: 4000}
    del part
    assert runtime.locked == {}
    assert taken == []


def test_a_lock_that_fails_leaves_no_error_behind() -> None:
    import torch

    from zerotoolsd.trainer.memory.page_lock import lock

    runtime, taken = Runtime(status=2), list[int]()
    assert lock(torch.empty(1000), runtime, lambda: taken.append(1)) == 2
    assert taken == [1]
