"""A process that takes too long is ended with its children, and reported by its own test alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import forked, started
from harness.started import Started
from tests.daemon.made_attempts import is_alive, wait_for_file
from tests.daemon.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open("pids.new", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(1000)
"""


def pids(directory: Path) -> list[int]:
    return [int(pid) for pid in wait_for_file(directory / "pids").read_text().split()]


def all_end(directory: Path) -> None:
    wait_for(lambda: not any(is_alive(pid) for pid in pids(directory)), "them to end")


def test_what_outlasts_its_patience_is_ended_with_its_children(tmp_path: Path) -> None:
    process = Started([sys.executable, "-c", PARENT], cwd=tmp_path)
    pids(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.returncode is not None
    all_end(tmp_path)


def test_a_command_that_takes_too_long_leaves_nothing(tmp_path: Path) -> None:
    command = ["sh", "-c", f"{sys.executable} -c '{PARENT.strip()}' & wait"]
    with pytest.raises(subprocess.TimeoutExpired):
        started.run(command, timeout=0.5, cwd=tmp_path, capture_output=True)
    if (tmp_path / "pids").exists():
        all_end(tmp_path)


def start_forked(directory: Path, program: str, **env: str) -> forked.Forked:
    script = directory / "program.py"
    script.write_text(program)
    with (directory / "log").open("wb") as log:
        arguments = ["-P", str(script), "told"]
        return forked.start((), arguments, cwd=directory, env=dict(env), out=log)


def test_a_forked_process_is_like_a_started_one(tmp_path: Path) -> None:
    program = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), __name__, dict(os.environ))\n"
        "print('err', file=sys.stderr, flush=True); sys.exit(7)"
    )
    assert start_forked(tmp_path, program, NAME="value").wait(20) == 7
    assert sorted((tmp_path / "log").read_text().splitlines()) == [
        f"['told'] {tmp_path} __main__ {{'NAME': 'value'}}",
        "err",
    ]
    assert start_forked(tmp_path, "raise ZeroDivisionError").wait(20) == 1
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()
    assert start_forked(tmp_path, "import os; os.kill(os.getpid(), 9)").wait(20) == -9


def test_a_forked_process_is_ended_with_its_children_too(tmp_path: Path) -> None:
    process = start_forked(tmp_path, PARENT, PATH=os.environ["PATH"])
    assert pids(tmp_path)[0] == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.returncode == -9
    all_end(tmp_path)


SUITE = """
import sys
import pytest
from harness.started import Started

@pytest.fixture(scope="module")
def dear():
    with open("made", "a") as file:
        file.write("once")
    Started([sys.executable, "-c", "input()"], stdin=-1)
    raise RuntimeError("not made")

def test_first(dear): pass
def test_second(dear): pass
def test_innocent(): pass
def test_careless(): Started([sys.executable, "-c", "input()"], stdin=-1)
"""


@pytest.mark.full  # a pytest of its own, with all that conftest imports
def test_what_was_started_is_reported_once_where_it_happened(tmp_path: Path) -> None:
    """Also, a module's fixture that failed is not made again for the next test."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\ntimeout = 60\n")
    done = started.run(
        [*(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider")],
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"},
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "made").read_text() == "once"
    assert "2 passed, 3 errors" in done.stdout, done.stdout
    assert done.stdout.count("RuntimeError: not made") >= 2
    assert "test_careless" in done.stdout.partition("were still running, and were ended")[0]
    assert "ResourceWarning" not in done.stdout
