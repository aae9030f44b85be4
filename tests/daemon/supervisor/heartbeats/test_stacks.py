"""Who is asked for its stacks, and how, without waiting for anybody."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from harness.started import Started
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor.heartbeats import rank_activity
from zerotoolsd.supervisor.heartbeats.stacks import (
    ANSWER_SECONDS,
    DUMP_SECONDS,
    StackDump,
    find_spy,
)


class Log:
    def __init__(self) -> None:
        self.seen, self.text = 0, ""

    def add(self, text: str) -> None:
        self.text += text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.chdir(tmp_path)
    found = Started(["/bin/sh", "-c", "trap '' QUIT; echo; exec sleep 1000"], stdout=PIPE)
    assert found.stdout is not None
    found.stdout.readline()  # the signal is ignored now
    yield found
    found.kill()
    found.wait(timeout=10)
    found.stdout.close()


def spy(tmp_path: Path, body: str) -> str:
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_one_that_does_not_answer_is_read_from_outside(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, 'echo "read $4"'), clock)
    dump.ask(sleeper.pid, log, answers=True)
    assert f"pid {sleeper.pid} " in log.text
    clock.now = ANSWER_SECONDS
    assert not dump.is_over()
    assert "does not answer the signal" in log.text
    (pid,) = dump.pids
    os.waitpid(pid, 0)
    dump.ended([pid])
    assert f"its stacks, by py-spy]\nread {sleeper.pid}" in log.text
    assert dump.is_over()
    assert list(tmp_path.glob("stacks-*")) == []


def test_one_that_answers_is_not_disturbed_further(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, "exit 1"), clock)
    dump.ask(sleeper.pid, log, answers=True)
    log.seen += 100
    clock.now = ANSWER_SECONDS
    assert dump.is_over()
    assert dump.pids == []


def test_a_dump_that_hangs_is_given_up(sleeper: Started, tmp_path: Path) -> None:
    clock, log = Clock(), Log()
    dump = StackDump(spy(tmp_path, "exec sleep 1000"), clock)
    dump.ask(sleeper.pid, log, answers=False)
    (pid,) = dump.pids
    assert not dump.is_over()
    clock.now = DUMP_SECONDS
    assert dump.is_over()
    assert "py-spy took more than 10 s" in log.text
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_without_py_spy_the_log_says_so(sleeper: Started) -> None:
    log = Log()
    StackDump(None).ask(sleeper.pid, log, answers=False)
    assert "py-spy is not installed" in log.text
    assert find_spy("/no/such/python", "/no/such/directory") is None


def test_the_kernel_s_words_on_a_stopped_process(sleeper: Started) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)

    def state() -> str:
        found = rank_activity.activity(sleeper.pid)
        return "" if found is None else found.state

    wait_for(lambda: state() == "T", "the process to stop")
    assert rank_activity.report(sleeper.pid).startswith(
        f"pid {sleeper.pid} is stopped by a signal (state T)"
    )
    assert rank_activity.activity(2**22 + 1) is None
    assert rank_activity.report(2**22 + 1).endswith("is gone")
