"""The machine that options describe, and what is looked up of this one."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.public.options import machine_options
from zerotools.public.options.machine_options import MachineOptions, given_machine
from zerotools.public.options.option import bound
from zerotools.sensors.snapshot import Gpu, GpuProcess, Host, Snapshot

GIB = 1 << 30


def machine(**given: Any) -> Any:
    return given_machine(bound(MachineOptions, given)).machine()


def two_cards() -> Snapshot:
    """A machine with two cards, a desktop on the first of them, and a job on the second."""
    desktop = GpuProcess(1, 2 * GIB, graphics=True)
    gpus = (
        Gpu(0, memory_total_bytes=24 * GIB, processes=(desktop,)),
        Gpu(1, memory_total_bytes=24 * GIB, processes=(GpuProcess(2, 20 * GIB),)),
    )
    host = Host(64 * GIB, 0, 0, 0, 0, 1, (0.0, 0.0, 0.0))
    return Snapshot(taken_at=0.0, host=host, gpus=gpus)


@pytest.mark.parametrize("given", [{}, {"gpus": "this machine"}], ids=str)
def test_what_a_desktop_holds_is_not_there(given: dict[str, Any]) -> None:
    """Jobs end, and a desktop does not."""
    found = given_machine(bound(MachineOptions, given)).machine(look=two_cards)
    assert (found.gpus, found.gpu_memory, found.host_memory) == (2, 22 * GIB, 64 * GIB)
    assert "without 2.0 GiB that a desktop holds" in found.notes[1]


def test_a_bare_number_of_ram_is_in_gigabytes() -> None:
    assert machine(gpus="4x24", ram="128").host_memory == 128 * 10**9
    assert machine(gpus="4x24", ram=128).host_memory == 128 * 10**9
    assert machine(gpus="4x24", ram="128GiB").host_memory == 128 * GIB
    assert machine(gpus="4x24", host_memory="1MiB").host_memory == 1 << 20


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="leave one of them out"):
        machine(ram=1, host_memory="1GiB")
    with pytest.raises(BadRequest, match="leave --gpu-memory out, or give --gpus 4"):
        machine(gpus="4x24", gpu_memory="24GiB", ram=1)
    with pytest.raises(BadRequest, match=r"--ram is .* check the unit"):
        machine(gpus="4x24", ram="900TiB")
    assert machine_options.ASSUMED_GPU == 80 * GIB
