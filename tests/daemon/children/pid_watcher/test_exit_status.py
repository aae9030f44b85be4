from __future__ import annotations

import os
import select
import signal
import subprocess

import pytest

from harness.started import Started
from zerotoolsd.children.pid_watcher import exit_status as exit_info
from zerotoolsd.children.pid_watcher.exit_status import exit_status
from zerotoolsd.supervisor.procfs import read_process, zombie_status

KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def ended(program: str, *, collect: bool) -> exit_info.ExitStatus | None:
    child = Started(["sh", "-c", f"read word; {program}"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    process = read_process(child.pid)
    assert process is not None
    try:
        assert child.stdin is not None
        child.stdin.close()
        select.select([pidfd], [], [])
        if collect:
            child.wait()
        return exit_status(pidfd, child.pid, process.start_ticks)
    finally:
        child.wait()
        os.close(pidfd)


@pytest.mark.parametrize(
    ("program", "exit_code", "number"),
    [("exit 0", 0, None), ("exit 3", 3, None), ("kill -KILL $$", None, signal.SIGKILL)],
)
def test_a_zombie_tells_how_it_ended(
    program: str, exit_code: int | None, number: int | None
) -> None:
    found = ended(program, collect=False)
    assert found is not None
    assert (found.exit_code, found.signal) == (exit_code, number)


@pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel keeps no status for others")
@pytest.mark.parametrize(
    ("program", "exit_code", "number"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("kill -SEGV $$", None, signal.SIGSEGV)],
)
def test_so_does_the_kernel_of_one_that_its_parent_has_collected(
    program: str, exit_code: int | None, number: int | None
) -> None:
    found = ended(program, collect=True)
    assert found is not None
    assert (found.exit_code, found.signal) == (exit_code, number)


def test_an_older_kernel_knows_nothing_of_it_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(exit_info.fcntl, "ioctl", refuse)
    assert ended("exit 3", collect=True) is None


def test_one_that_took_over_the_pid_is_not_asked() -> None:
    child = Started(["true"])
    pidfd = os.pidfd_open(child.pid)
    try:
        select.select([pidfd], [], [])
        assert zombie_status(child.pid, 1) is None
    finally:
        child.wait()
        os.close(pidfd)
