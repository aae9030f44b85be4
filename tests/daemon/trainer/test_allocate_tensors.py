"""Every place counts its bytes, and a disk without room is said at the start."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job, run
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.offload import OffloadSpec

pytestmark = pytest.mark.torch


def test_bytes_are_counted_by_place_and_sort_until_they_are_freed(tmp_path: Path) -> None:
    import torch

    from zerotools.core.training_memory_layout import GRADIENTS, MASTERS, MOMENTS
    from zerotoolsd.trainer.allocate_tensors import make_memory

    memory = make_memory(torch.device("cpu"), "disk", OffloadSpec(path=str(tmp_path)))
    ledger = memory.ledger
    master = memory.state.empty((4, 8), torch.float32, MASTERS)
    moments = [memory.state.zeros((3,), torch.float32, MOMENTS) for _ in range(2)]
    buffer = memory.transfer.empty((5,), torch.bfloat16, GRADIENTS)
    part = master.view(-1)[7:]
    assert [ledger.tier_of(t) for t in (master, part, buffer)] == ["disk", "disk", "host"]
    assert [moment.tolist() for moment in moments] == [[0.0] * 3] * 2
    del master
    assert ledger.live["disk", "masters"] == 128
    del part
    assert ledger.live["disk", "masters"] == 0
    assert ledger.peak == {
        ("disk", "masters"): 128,
        ("disk", "moments"): 24,
        ("host", "gradients"): 10,
    }
    assert list(tmp_path.iterdir()) == []


def test_without_offload_state_is_on_the_device() -> None:
    import torch

    from zerotoolsd.trainer.allocate_tensors import make_memory

    memory = make_memory(torch.device("cpu"))
    assert memory.state is memory.transfer is memory.device


def test_a_directory_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    import torch

    from zerotools.core.training_memory_layout import MASTERS
    from zerotoolsd.trainer.allocate_tensors import make_memory

    memory = make_memory(torch.device("cpu"), "disk", OffloadSpec(path=str(tmp_path)))
    with pytest.raises(BadRequest, match=f"{tmp_path} cannot hold the optimizer's state: "):
        memory.state.empty((1 << 60,), torch.float32, MASTERS)
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_does_not_fit_on_the_disk_ends_with_both_numbers(
    tmp_path: Path, text: Path
) -> None:
    huge = {**TINY_LLAMA, "hidden_size": 1 << 17, "intermediate_size": 1 << 20}
    offload = {"optimizer": "disk", "path": str(tmp_path / "spill")}
    tree = job(text, model={"config": huge}, offload=offload)
    attempt = run(tmp_path, tree, expect=64)
    [error] = attempt.events("error")
    assert "offload.path: the optimizer's state takes " in error["message"]
    assert "GiB free: free some space, or name a directory on another disk" in error["message"]


@pytest.mark.gpu
def test_offloaded_state_is_on_the_host_of_a_gpu(tmp_path: Path, text: Path) -> None:
    import torch

    from zerotools.core.training_memory_layout import GRADIENTS, MASTERS, WEIGHTS
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch.master_weights import make_copy_stream

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    device = torch.device("cuda", 0)
    memory = make_memory(device, "host")
    weight = memory.device.empty((1000, 100), torch.bfloat16, WEIGHTS)
    buffer = memory.transfer.empty(weight.shape, weight.dtype, GRADIENTS)
    master = memory.state.zeros(weight.shape, torch.float32, MASTERS)
    assert weight.is_cuda
    assert not master.is_cuda
    small = [memory.transfer.empty((3,), torch.bfloat16, GRADIENTS) for _ in range(8)]
    assert all(each.is_pinned() for each in (buffer, *small))
    copies = make_copy_stream(device)
    copies.to_host(torch.ones_like(weight), buffer)
    copies.wait_on_host()
    assert bool((buffer == 1).all())
    buffer.fill_(2)
    copies.to_device(buffer, weight)
    copies.wait_on_device()
    assert bool((weight == 2).all())
    sums = memory.transfer.empty(weight.shape, torch.float32, GRADIENTS)
    copies.to_host(torch.ones_like(weight), sums)
    norm = copies.add_to_host(torch.full_like(weight, 2), sums)
    copies.wait_on_host()
    assert bool((sums == 3).all())
    assert float(norm) == pytest.approx(3 * weight.numel() ** 0.5)


@pytest.mark.parametrize(
    ("device", "pins", "is_pinned"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_copies_of_a_gpu_go_through_pinned_memory_unless_the_job_forbids_it(
    device: str, pins: bool, is_pinned: bool
) -> None:
    import torch

    from zerotools.jobs.jobfile_tables.offload import OffloadSpec
    from zerotoolsd.trainer.allocate_tensors import PinnedTier, make_memory

    memory = make_memory(torch.device(device, 0), "host", OffloadSpec(pin_memory=pins))
    assert isinstance(memory.transfer, PinnedTier) is is_pinned
    assert memory.pins is is_pinned


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
    from zerotoolsd.trainer.allocate_tensors import PinnedArena

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

    from zerotoolsd.trainer.allocate_tensors import LockFailed

    runtime, taken = Runtime(most=0), list[int]()
    with pytest.raises(LockFailed, match="CUDA error 2"):
        arena_of(runtime, taken).empty((1000,), torch.float32)
    assert taken == [1]


def test_a_tier_that_cannot_pin_says_what_to_do() -> None:
    import torch

    from zerotools.core.errors import BadRequest
    from zerotools.core.training_memory_layout import GRADIENTS, HOST
    from zerotoolsd.trainer.allocate_tensors import Ledger, PinnedTier

    tier = PinnedTier(HOST, torch.device("cpu"), Ledger(), arena_of(Runtime(most=0), []))
    with pytest.raises(BadRequest, match="4000 bytes of host memory cannot be pinned"):
        tier.empty((1000,), torch.float32, GRADIENTS)
    runtime, ledger = Runtime(), Ledger()
    tier = PinnedTier(HOST, torch.device("cpu"), ledger, arena_of(runtime, []))
    made = [tier.empty((10,), torch.float32, GRADIENTS) for _ in range(3)]
    assert ledger.live[HOST, GRADIENTS] == 120
    del made[0]
    assert ledger.live[HOST, GRADIENTS] == 80
    assert {ledger.tier_of(tensor) for tensor in made} == {HOST}


def test_pages_are_locked_by_torch_s_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.allocate_tensors import PinnedArena

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    tensor = PinnedArena().empty((8,), torch.float32)
    assert set(_pages(tensor.data_ptr(), tensor.nbytes)) <= runtime.pages()
