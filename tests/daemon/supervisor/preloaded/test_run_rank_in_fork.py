"""What a forked rank has in common with one that was executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.supervisor.preloaded.run_rank_in_fork import is_program

PROGRAM = """
import json, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv[1:], "name": __name__, "env": dict(os.environ),
    "fds": sorted(os.listdir("/proc/self/fd")),
    "signals": {each.name: str(signal.getsignal(each)) for each in signal.Signals},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "path": sys.path, "threads": threading.active_count(),
}))
"""
FORKED = """
import json, os, signal, sys
from zerotoolsd.supervisor.preloaded.run_rank_in_fork import run_program_in_fork
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGHUP, lambda *_: None)
signal.signal(signal.SIGPIPE, lambda *_: None)
os.open("/dev/null", os.O_RDONLY)
run_program_in_fork(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
"""
ENV = {"PATH": os.environ["PATH"], "WORD": "a", "LC_CTYPE": "C.UTF-8"}


def forked(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What becomes of `argv` in a process that has run something else before."""
    command = [sys.executable, "-P", "-c", FORKED, json.dumps(argv), json.dumps(env)]
    own = {"ZEROTOOLS_TOKEN": "-" * 32, "OTHER": "b"}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


def _heed_hangups() -> None:
    """Under nohup the tests ignore them, and so would what they execute."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_program_finds_what_its_own_interpreter_would_have_set(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, "-P", str(program), "--run-dir", "x"]
    executed = subprocess.run(
        argv, env=ENV, capture_output=True, text=True, check=True, preexec_fn=_heed_hangups
    )
    warm, cold = (json.loads(each.stdout) for each in (forked(argv, ENV), executed))
    assert warm == cold


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit(257)", 1, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import atexit; atexit.register(print, 'bye'); print('a', end='')", 0, ""),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_it_ends_as_under_an_interpreter_of_its_own(
    tmp_path: Path, text: str, status: int, said: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    argv = [sys.executable, "-P", str(program)]
    executed = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=False)
    found = forked(argv, ENV)
    assert found.returncode == executed.returncode == status
    assert found.stdout == executed.stdout
    assert said in found.stderr


def test_the_token_shows_in_the_environment_of_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(open('/proc/self/environ').read().split(chr(0)))")
    token = "0123456789abcdef" * 2
    found = forked([sys.executable, "-P", str(program)], {**ENV, "ZEROTOOLS_TOKEN": token})
    assert f"ZEROTOOLS_TOKEN={token}" in found.stdout


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python", "-P", "entry.py", "--run-dir", "x"), True),
        (("python", "-I", "entry.py"), False),
        (("python", "-P"), False),
        (("python", "-P", "program"), False),
    ],
)
def test_only_a_file_under_the_flag_of_the_server_can_be_run(
    argv: tuple[str, ...], expected: Any
) -> None:
    assert is_program(argv) is expected
