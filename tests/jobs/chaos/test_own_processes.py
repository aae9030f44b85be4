"""Signals reach the processes of a drill, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.waiting import wait_for
from zerotools.jobs.chaos.own_processes import (
    VARIABLE,
    CleanupProcess,
    command_line,
    end_all,
    is_own,
    live_attempts,
    own_processes,
    remove_groups,
    signal_own,
)

Sleeper = Callable[..., Started]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    begun: list[Started] = []

    def start(*words: object, **env: str) -> Started:
        program = "print(flush=True); import time; time.sleep(600)"
        command = [sys.executable, "-S", "-c", program, *words]
        process = Started(command, env={**os.environ, **env}, stdout=subprocess.PIPE)
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # it is what it is to be
        return process

    yield start
    for process in begun:
        process.end()


def test_what_names_the_directory_in_its_environment_is_its_own(
    sleeper: Sleeper, tmp_path: Path
) -> None:
    place = tmp_path / "drill"
    daemon = sleeper(**{VARIABLE: str(place)})
    rank = sleeper(ZEROTOOLS_RUN_DIR=str(place / "state/jobs/1/attempt-1"))
    supervisor = sleeper("/lib/zerotoolsd/supervisor/entry.py", place / "state/jobs/1/attempt-1")
    others = [
        sleeper(**{VARIABLE: f"{place}2"}),
        sleeper(ZEROTOOLS_RUN_DIR=f"{place}2/state/jobs/1/attempt-1"),
        sleeper(place / "zerotoolsd.log"),  # as an editor of the user has it open
        sleeper(),
    ]
    own = [daemon, rank, supervisor]
    assert [is_own(each.pid, place) for each in own] == [True] * 3
    assert [is_own(each.pid, place) for each in others] == [False] * 4
    assert sorted(own_processes(place)) == sorted(each.pid for each in own)
    assert not any(signal_own(each.pid, signal.SIGKILL, place) for each in others)
    assert all(signal_own(each.pid, signal.SIGKILL, place) for each in own)
    assert [each.wait(20) for each in own] == [-signal.SIGKILL] * 3
    assert [each.poll() for each in others] == [None] * 4
    assert not signal_own(daemon.pid, signal.SIGKILL, place)
    assert own_processes(place) == []


def test_live_attempts_are_those_that_run(sleeper: Sleeper, tmp_path: Path) -> None:
    state = tmp_path / "state"
    rank = sleeper(**{VARIABLE: str(tmp_path)})
    pids = {1: rank.pid, 2: sleeper().pid, 3: rank.pid}
    for number, pid in pids.items():
        directory = state / "jobs" / str(number) / "attempt-1"
        directory.mkdir(parents=True)
        tree = {"pid": 2, "keeper": {"pid": 3}, "ranks": [{"rank": 0, "pid": pid}]}
        (directory / "run.json").write_text(json.dumps(tree))
    (state / "jobs/3/attempt-1/exit.json").write_text("{}")
    (state / "jobs/1/attempt-2").mkdir()
    (state / "jobs/1/attempt-2/run.json").write_text("{")
    [found] = live_attempts(state, tmp_path)
    assert found == (1, 2, 3, rank.pid)
    assert [found.pid_of(role) for role in ("supervisor", "keeper", "rank")] == [2, 3, rank.pid]


def test_a_process_is_described_by_what_it_runs(sleeper: Sleeper) -> None:
    process = sleeper()
    assert command_line(process.pid).startswith(f"pid {process.pid} ({sys.executable} -S -c print")
    process.end()
    wait_for(lambda: command_line(process.pid) == f"pid {process.pid}", "it to be gone")


def test_groups_of_its_attempts_are_removed_and_no_others(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    kept = ["zerotools-1-1-ffffffff", "zerotools-1-2-aaaaaaaa", "mine"]
    for name in ("zerotools-1-1-aaaaaaaa", *kept):
        (groups / name).mkdir(parents=True)
    directory = tmp_path / "state/jobs/1/attempt-1"
    directory.mkdir(parents=True)
    plan = {"job_id": 1, "attempt": 1, "token": "a" * 32}
    (directory / "attempt.json").write_text(json.dumps(plan))
    run = {"cgroup": str(groups / "zerotools-1-1-aaaaaaaa")}
    (directory / "run.json").write_text(json.dumps(run))
    remove_groups(tmp_path / "state")
    assert sorted(path.name for path in groups.iterdir()) == sorted(kept)


SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def test_what_is_stopped_is_ended_too(tmp_path: Path) -> None:
    env = {**os.environ, VARIABLE: str(tmp_path)}
    with Started(SLEEPS, env=env) as own, Started(SLEEPS) as other:
        own.send_signal(signal.SIGSTOP)
        end_all(tmp_path)
        assert own.wait(20) == -signal.SIGKILL
        assert other.is_running()
        other.end()


def test_it_sweeps_when_the_drill_is_over_and_is_no_part_of_it(tmp_path: Path) -> None:
    sweep = CleanupProcess(tmp_path)
    assert own_processes(tmp_path) == []
    with Started(SLEEPS, env={**os.environ, VARIABLE: str(tmp_path)}) as own:
        assert own_processes(tmp_path) == [own.pid]
        sweep.end()
        assert own.wait(20) == -signal.SIGKILL
