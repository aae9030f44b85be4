"""Who is asked to stop below a shell."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from harness.started import Started
from tests.daemon.made_attempts import wait_for_file
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor.ending.stopping import terminate

SAVES = """
import pathlib, signal
def save(*_):
    print("saving", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
signal.pause()
"""


def test_what_reads_the_output_of_a_program_lives_until_it_has_saved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    line = f"{sys.executable} train.py | tee log | cat; echo after >> log"
    shell = Started(["sh", "-c", line], cwd=tmp_path)
    try:
        wait_for_file(tmp_path / "ready")
        # Forked by the shell after the program, and what they are only when they have begun.
        wait_for(lambda: {"tee", "cat"} <= _children_of(shell.pid), "the filters")
        assert len(terminate([shell.pid], launcher=False)) == 1
        assert shell.wait(timeout=20) == 0
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert (tmp_path / "log").read_text() == "saving\nafter\n"


def _children_of(pid: int) -> set[str]:
    return {each.name() for each in psutil.Process(pid).children()}
