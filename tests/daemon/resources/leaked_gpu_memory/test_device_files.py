from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.started import Started
from zerotoolsd.resources.leaked_gpu_memory import device_files
from zerotoolsd.supervisor.procfs import Process, read_process


def process(pid: int) -> Process:
    return Process(pid=pid, parent=1, state="S", start_ticks=pid, rss_bytes=0)


def opened(proc: Path, pid: int, *targets: str) -> None:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True)
    for number, target in enumerate(targets):
        (directory / str(number)).symlink_to(target)


def test_those_are_found_that_have_a_device_of_one_gpu_open(tmp_path: Path) -> None:
    opened(tmp_path, 7, "socket:[3]", "/dev/nvidia1", "/dev/nvidia0", "/dev/nvidiactl")
    opened(tmp_path, 8, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1")
    opened(tmp_path, 9, "/dev/null", "/dev/nvidia12 (deleted)")
    there = [process(pid) for pid in (7, 8, 9, 10)]
    assert device_files.holders(there, proc=tmp_path) == {7: "/dev/nvidia0"}


def test_what_is_not_one_s_own_or_has_ended_is_passed_over(tmp_path: Path) -> None:
    assert device_files.holders([process(7)], proc=tmp_path) == {}
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "fd").write_text("no directory")
    assert device_files.holders([process(8)], proc=tmp_path) == {}


def test_a_real_process_that_holds_one(tmp_path: Path) -> None:
    device = tmp_path / "nvidia3"
    device.touch()
    command = [sys.executable, "-I", "-S", "-c", "input()"]
    with device.open() as file:
        started = Started(
            command, stdin=subprocess.PIPE, pass_fds=(file.fileno(),), stdout=subprocess.DEVNULL
        )
    found = read_process(started.pid)
    assert found is not None
    own = read_process(os.getpid())
    assert own is not None
    prefix = str(tmp_path / "nvidia")
    assert device_files.holders([own, found], prefix) == {started.pid: str(device)}
    started.end()
