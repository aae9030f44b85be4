"""What ends everything of a drill."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.started import Started
from zerotools.jobs.chaos.cleanup_process import CleanupProcess, end_all
from zerotools.jobs.chaos.own_processes import VARIABLE, own_processes

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
