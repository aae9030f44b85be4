from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.daemon.resources.gpu_sharing.test_measured_use import attempt
from zerotoolsd.monitoring.history.job_memory import host_memory
from zerotoolsd.supervisor.procfs import Process

TABLE = {
    pid: Process(pid=pid, parent=parent, state="S", start_ticks=10 * pid, rss_bytes=2**pid)
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 11), (20, 1), (21, 20), (30, 1))
}


def test_each_attempt_has_all_below_its_keeper_and_not_its_supervisor(tmp_path: Path) -> None:
    ours = [attempt(tmp_path / "7", 7, 11, 10), attempt(tmp_path / "8", 8, 21, 20)]
    found = host_memory(ours, lambda: TABLE)
    assert found == {(7, 1): 2**12 + 2**13, (8, 1): 0}


def test_a_pid_that_was_taken_over_is_nobodys(tmp_path: Path) -> None:
    ours = [attempt(tmp_path / "7", 7, 11, 10)]
    taken = {**TABLE, **{pid: replace(TABLE[pid], start_ticks=5) for pid in (10, 11)}}
    assert host_memory(ours, lambda: taken) == {}


def test_without_attempts_nobody_looks_at_all_processes() -> None:
    def read() -> dict[int, Process]:
        raise AssertionError("it looked")

    assert host_memory([], read) == {}
