"""The memory of an attempt's processes: who is counted, and how seldom others are read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.started import Started
from zerotoolsd.supervisor import host_memory
from zerotoolsd.supervisor.host_memory import HostMemory
from zerotoolsd.supervisor.procfs import Process, descendants, processes

ME = os.getpid()


class MachineOfProcesses:
    """Processes by pid: (parent, bytes). Reading one takes a tenth of a millisecond."""

    def __init__(self) -> None:
        self.all: dict[int, tuple[int, int]] = {1: (0, 7), 2: (0, 0), ME: (1, 5)}
        self.read: list[int] = []
        self.now = 0.0
        self.gone: set[int] = set()
        self.memory = HostMemory(
            lambda: self.now,
            lambda: len(self.read) * 1e-4,
            self.read_one,
            there=lambda: {*self.all, *self.gone},
        )

    def read_one(self, pid: int) -> Process | None:
        self.read.append(pid)
        if pid not in self.all:
            return None
        parent, used = self.all[pid]
        return Process(pid=pid, parent=parent, state="S", start_ticks=1, rss_bytes=used)

    def after(self, seconds: float) -> int | None:
        self.now += seconds
        self.read.clear()
        return self.memory.measure({})


@pytest.fixture
def machine() -> MachineOfProcesses:
    return MachineOfProcesses()


def test_only_what_may_be_ours_is_read_again(machine: MachineOfProcesses) -> None:
    machine.all |= {ME + 1: (ME, 100), ME + 2: (ME + 1, 10), **dict.fromkeys(range(3, 90), (2, 9))}
    assert machine.after(0) == 110
    assert len(machine.read) == len(machine.all)
    machine.all |= {ME + 3: (ME + 2, 1000), 95: (1, 50)}
    assert machine.after(60) == 1110
    assert sorted(machine.read) == [95, ME + 1, ME + 2, ME + 3]
    del machine.all[ME + 1]
    machine.all[ME + 2] = (ME, 20)  # its parent is gone: it is our child now
    assert machine.after(60) == 20 + 1000


def test_it_takes_a_thousandth_of_a_processor(machine: MachineOfProcesses) -> None:
    machine.all |= {n: (2, 9) for n in range(3, 503) if n != ME}
    assert machine.after(0) == 0
    cost = len(machine.read) * 1e-4
    assert machine.after(cost / host_memory.SHARE - 1) is None
    assert machine.after(1.1) is not None


def test_an_orphan_whose_parent_ended_between_two_reads_is_found(
    machine: MachineOfProcesses,
) -> None:
    gone, orphan = ME + 1, ME + 2
    machine.all |= {orphan: (gone, 100)}
    machine.gone = {gone}
    assert machine.after(0) == 0
    machine.all[orphan] = (ME, 100)
    assert machine.after(60) == 100


def test_it_counts_what_the_kernel_tells() -> None:
    program = "print('there', flush=True); input()"  # until then the kernel may tell of no page
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = Started([sys.executable, "-c", program], **streams)
    assert child.stdout.readline() == b"there\n"
    used = HostMemory().measure({child.pid})
    everything = HostMemory().measure({})
    below = descendants(ME, processes())
    child.end()
    assert used is not None
    assert everything is not None
    assert child.pid in [process.pid for process in below]
    assert everything > used
