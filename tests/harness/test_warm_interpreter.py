"""A stand-in for Python: what runs behind it ends as it does, with what it printed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import forked
from harness.started import Started, run
from harness.warm_interpreter import interpreter
from tests.daemon.made_attempts import is_alive
from tests.daemon.waiting import wait_for

MODULES = ("colorsys",)
PROGRAM = """
import json, os, signal, sys
print("json" in sys.modules, os.environ["WORD"], os.getcwd(), os.getpid(), flush=True)
if sys.argv[1] == "wait":
    signal.pause()
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    with interpreter(tmp_path / "python", MODULES) as path:
        yield path
    forked.close_server(MODULES)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """One that is run warm, by its name."""
    path = tmp_path / "trainer" / "entry.py"
    path.parent.mkdir()
    path.write_text(PROGRAM.replace("json", "colorsys", 1).replace('"json"', '"colorsys"'))
    return str(path)


def test_other_programs_are_run_by_the_interpreter_itself(python: Path) -> None:
    words = [str(python), "-c", "import sys; print(sys.executable, sys.prefix); sys.exit(7)"]
    done = run(words, stdout=subprocess.PIPE, text=True, timeout=20)
    assert (done.returncode, done.stdout.split()) == (7, [sys.executable, sys.prefix])


def test_a_warm_one_ends_as_what_runs_behind_it(python: Path, program: str, tmp_path: Path) -> None:
    options = {"env": {"WORD": "w"}, "cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    done = run([str(python), "-P", program, "3"], **options, timeout=20)
    assert (done.returncode, done.stdout.split()[:3]) == (3, ["True", "w", str(tmp_path)])
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = Started([str(python), "-P", program, "wait"], **options)
        assert process.stdout is not None
        behind = int(process.stdout.readline().split()[3])
        process.send_signal(number)
        assert process.wait(20) == -number
        wait_for(lambda pid=behind: not is_alive(pid), "what runs behind it to end")
        process.stdout.close()
