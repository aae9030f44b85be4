"""/proc as it is: hidden from other users, and empty of a program that is only being started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.made_attempts import make_attempt, noted_at_step, wait_for_file
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor import entry, procfs
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.procfs import (
    HostMemory,
    Process,
    all_processes,
    await_program,
    descendants,
    read_process,
)

HIDDEN = "mount -t proc -o hidepid=1 proc /proc && "
MAY_READ = "--inh-caps=+dac_override --ambient-caps=+dac_override"
OTHER = f"setpriv --reuid 65534 --regid 65534 --clear-groups {MAY_READ} "


def in_namespace(command: str) -> subprocess.CompletedProcess[bytes]:
    """Run below a /proc with hidepid=1 as a user to whom it hides what root runs."""
    return subprocess.run(inside(command), capture_output=True, check=False, timeout=60)


def inside(command: str) -> list[str]:
    """What `in_namespace` runs."""
    return ["unshare", "-p", "-m", "--fork", "sh", "-c", f"{HIDDEN}{OTHER}{command}"]


def test_a_process_that_proc_hides_is_passed_over() -> None:
    def hidden(path: Path) -> bytes:
        raise PermissionError(1, "Operation not permitted", str(path))

    assert read_process(1, hidden) is None
    assert read_process(os.getpid()) is not None


def test_a_job_of_an_ordinary_user_runs_and_is_ended_where_others_are_hidden(
    tmp_path: Path,
) -> None:
    tools = all(map(shutil.which, ("unshare", "setpriv")))
    if not tools or os.geteuid() or in_namespace("sh -c '! cat /proc/1/stat'").returncode:
        pytest.skip("another user, and a /proc of their own, need root with CAP_SYS_ADMIN")
    run = make_attempt(tmp_path / "run", "rank=0:child rank=1:orphan steps=2 release exit=0")
    command = inside(f"{sys.executable} -I -S {entry.__file__} {run}")
    with Started(command, stderr=subprocess.PIPE) as started:
        wait_for_file(run / "waiting-0")
        wait_for(lambda: noted_at_step(2, run), "the supervisor to note steps and memory")
        (run / "release").touch(0o600)
        _, stderr = started.communicate(timeout=60)
    assert started.returncode == 0, stderr.decode()
    record = read_json(run / "exit.json")
    assert record is not None
    assert (record["outcome"], record["unkillable"]) == ("finished", [])
    assert record["peak_host_bytes"] > 2**20


def test_a_program_has_its_words_once_it_has_begun() -> None:
    for _ in range(30):
        with Started(["cat", "--number"], stdin=subprocess.PIPE) as started:
            process = read_process(started.pid)
            assert process is not None
            await_program(process, milliseconds=2000)
            words = Path(f"/proc/{started.pid}/cmdline").read_bytes()
            started.kill()
        assert words == b"cat\0--number\0"


def test_threads_of_the_kernel_are_not_waited_for() -> None:
    kernel = Process(pid=2**22 + 1, parent=2, state="S", start_ticks=1, rss_bytes=0)
    await_program(kernel, milliseconds=10**9)
    gone = kernel._replace(parent=1)
    await_program(gone, milliseconds=10**9)


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
    machine.all |= {n: (ME, 9) for n in range(3, 53) if n != ME}
    used = machine.after(0)
    assert used is not None
    for pause in (1, 2, 4):  # a program that has just begun grows fast
        assert machine.after(pause - 0.1) is None
        assert machine.after(0.2) == used
    for _ in range(1100):
        machine.after(100)
    cost = len(machine.read) * 1e-4
    assert machine.after(cost / procfs.SHARE - 1) is None
    assert machine.after(1.1) == used


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
    below = descendants(ME, all_processes())
    child.end()
    assert used is not None
    assert everything is not None
    assert child.pid in [process.pid for process in below]
    assert everything > used
