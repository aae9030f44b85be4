"""The process that watches another: a stop that comes before it listens is not lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from harness.started import Started
from zerotools.jobs.jobfile_tables.script import AdoptedProcess
from zerotoolsd.attempts.launcher_command import watching_command
from zerotoolsd.children.pid_watcher import watch_process as exit_info
from zerotoolsd.children.pid_watcher.watch_process import WatchedTree, exit_status
from zerotoolsd.supervisor.attempt_plan import REQUEST, TIME_LIMIT, Plan
from zerotoolsd.supervisor.procfs import Process, boot_id, read_process, zombie_status
from zerotoolsd.supervisor.start_ranks import spawn_rank


def test_a_time_limit_that_is_over_while_it_starts_ends_the_process(tmp_path: Path) -> None:
    child = Started(["sleep", "1000"])
    try:
        seen = read_process(child.pid)
        assert seen is not None
        process = AdoptedProcess(child.pid, seen.start_ticks, boot_id())
        (tmp_path / REQUEST).write_text(json.dumps({"reason": TIME_LIMIT}))
        plan = Plan(
            job_id=1,
            attempt=1,
            token="t",
            argv=watching_command(process, grace_seconds=60),
            env={"ZEROTOOLS_RUN_DIR": str(tmp_path)},
            cwd="/",
            umask=0o077,
            world_size=1,
            gpu_uuids=(),
            grace_seconds=60,
            straggler_seconds=60,
            log_limit_bytes=2**20,
            watches=True,
        )
        watcher = spawn_rank(plan, 0, 0, tmp_path / "log")
        assert watcher.start is not None
        while not watcher.start.is_over():
            os.sched_yield()
        os.kill(watcher.pid, signal.SIGTERM)  # its interpreter has only begun
        _, status = os.waitpid(watcher.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert child.wait() == -signal.SIGTERM
        watcher.start.close()
        watcher.log.close()
    finally:
        child.end()


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


@pytest.mark.parametrize(
    ("program", "owners", "shown"),
    [
        ("exit 0", (65534, 65534), 0),
        ("exit 0", (12345, 65534), None),
        ("exit 0", (65534, 12345), None),
        ("exit 7", (12345, 12345), 7 << 8),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user")
def test_a_success_is_not_believed_of_another_user(
    program: str, owners: tuple[int, int], shown: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows 0 to a user who may not inspect the zombie."""
    child = Started(["sh", "-c", program], user=65534, group=65534, extra_groups=[])
    pidfd = os.pidfd_open(child.pid)
    try:
        select.select([pidfd], [], [])
        found = read_process(child.pid)
        assert found is not None
        monkeypatch.setattr(os, "geteuid", lambda: owners[0])
        monkeypatch.setattr(os, "getegid", lambda: owners[1])
        assert zombie_status(child.pid, found.start_ticks) == shown
    finally:
        monkeypatch.undo()
        child.wait()
        os.close(pidfd)


def process(pid: int, parent: int, start: int = 1, state: str = "S") -> Process:
    return Process(pid=pid, parent=parent, state=state, start_ticks=start, rss_bytes=0)


class Machine:
    """Processes, by pid."""

    def __init__(self, *there: Process) -> None:
        self.there = {each.pid: each for each in there}

    def __call__(self) -> dict[int, Process]:
        return dict(self.there)


def test_what_runs_below_it_belongs_to_it_and_nothing_else() -> None:
    machine = Machine(process(5, 1), process(6, 5), process(7, 6), process(8, 1))
    assert {each.pid for each in WatchedTree(5, 1, machine).update()} == {5, 6, 7}


def test_what_it_leaves_behind_still_does() -> None:
    machine = Machine(process(5, 1), process(6, 5))
    tree = WatchedTree(5, 1, machine)
    tree.update()
    machine.there = {6: process(6, 1), 9: process(9, 6)}
    assert {each.pid for each in tree.update()} == {6, 9}
    machine.there = {9: process(9, 1)}
    assert [each.pid for each in tree.update()] == [9]


def test_one_that_took_over_a_pid_does_not() -> None:
    machine = Machine(process(5, 1), process(6, 5))
    tree = WatchedTree(5, 1, machine)
    tree.update()
    machine.there = {5: process(5, 1, start=9), 6: process(6, 1, start=9), 7: process(7, 6)}
    assert tree.update() == []


def test_what_has_ended_is_not_there() -> None:
    machine = Machine(process(5, 1, state="Z"), process(6, 5))
    assert [each.pid for each in WatchedTree(5, 1, machine).update()] == [6]
