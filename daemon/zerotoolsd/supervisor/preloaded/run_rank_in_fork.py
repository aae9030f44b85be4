"""Runs a rank of the built-in trainer in a forked process, without `exec`.

The command of such a rank is `PYTHON -P PROGRAM ARGUMENT...`, and the fork already runs PYTHON.
Normally an interpreter sets some state at its start: arguments, environment, signals, random
numbers. In the fork, this module sets the same state.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

TOKEN = "ZEROTOOLS_TOKEN"
NO_TOKEN = "-" * 32
"""Placeholder of the same length for an attempt's token, in the environment with which a fork
server is started.
"""
THREADS = "OMP_NUM_THREADS"
_ENV_START, _ENV_END = 47, 48
"""Positions of two fields in /proc/PID/stat after the name: fields 50 and 51 of
proc_pid_stat(5).
"""


def is_program(argv: Sequence[str]) -> bool:
    """Return whether `run_program_in_fork` can run the command `argv`: a Python program."""
    return len(argv) > 2 and argv[1] == "-P" and argv[2].endswith(".py")


def run_program_in_fork(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Run the Python program `argv` in this forked process, and exit with its exit status."""
    status = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        begin_anew(argv, env)
        try:
            runpy.run_path(argv[2], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = _status_of(end)
        except KeyboardInterrupt:
            traceback.print_exc()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads, as at any end
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def begin_anew(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Reset the state that this forked process has inherited to that of a new interpreter: signal
    handlers, environment, arguments, random numbers and the number of threads.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGPIPE, signal.SIG_IGN),
        (signal.SIGXFSZ, signal.SIG_IGN),
    ):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(env)
    show_token(env.get(TOKEN, ""))
    sys.orig_argv[:] = argv
    sys.argv[:] = argv[2:]
    # `random` does this itself after a fork.
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    torch, threads = sys.modules.get("torch"), env.get(THREADS, "")
    if torch is not None and threads.isdecimal():
        torch.set_num_threads(int(threads))


def show_token(token: str) -> None:
    """Write the token of the attempt into /proc/PID/environ of this process. The daemon finds
    the processes of an attempt by it.

    The file shows the environment of the last exec, not the current environment.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if len(token) != len(NO_TOKEN) or not start < end:
        return
    place = ctypes.string_at(start, end - start).find(f"{TOKEN}={NO_TOKEN}\0".encode())
    if place >= 0:
        ctypes.memmove(start + place + len(TOKEN) + 1, token.encode("ascii"), len(token))


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1
