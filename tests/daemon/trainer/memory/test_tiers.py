"""Every place counts its bytes, and a disk without room is said at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launching import TINY_LLAMA, job, run
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.offload import OffloadSpec

pytestmark = pytest.mark.torch


def test_bytes_are_counted_by_place_and_sort_until_they_are_freed(tmp_path: Path) -> None:
    import torch

    from zerotools.core.training_memory import GRADIENTS, MASTERS, MOMENTS
    from zerotoolsd.trainer.memory.tiers import make_memory

    memory = make_memory(torch.device("cpu"), "disk", OffloadSpec(path=str(tmp_path)))
    ledger = memory.ledger
    master = memory.state.empty((4, 8), torch.float32, MASTERS)
    moments = [memory.state.zeros((3,), torch.float32, MOMENTS) for _ in range(2)]
    buffer = memory.transfer.empty((5,), torch.bfloat16, GRADIENTS)
    part = master.view(-1)[7:]
    assert [ledger.place_of(t) for t in (master, part, buffer)] == ["disk", "disk", "host"]
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

    from zerotoolsd.trainer.memory.tiers import make_memory

    memory = make_memory(torch.device("cpu"))
    assert memory.state is memory.transfer is memory.device


def test_a_directory_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    import torch

    from zerotools.core.training_memory import MASTERS
    from zerotoolsd.trainer.memory.tiers import make_memory

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
    assert "GiB free: free some, or name a directory on another disk" in error["message"]


@pytest.mark.gpu
def test_offloaded_state_is_on_the_host_of_a_gpu(tmp_path: Path, text: Path) -> None:
    import torch

    from zerotools.core.training_memory import GRADIENTS, MASTERS, WEIGHTS
    from zerotoolsd.trainer.engine_torch.copy_stream import make_copy_stream
    from zerotoolsd.trainer.memory.tiers import make_memory

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

    from zerotools.jobs.tables.offload import OffloadSpec
    from zerotoolsd.trainer.memory.tiers import PinnedTier, make_memory

    memory = make_memory(torch.device(device, 0), "host", OffloadSpec(pin_memory=pins))
    assert isinstance(memory.transfer, PinnedTier) is is_pinned
    assert memory.pins is is_pinned
