"""Commands before the ranks begin, or when they are gone: their failure loses nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.spawn_child import die_with

LOG = "closing.log"
LOOK_SECONDS = 0.2
KILL_SECONDS = 10.0
_TAIL_BYTES = 4096


def run_closing(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], log: str = LOG
) -> dict[str, Any]:
    """Run `command` until it ends or a stop is requested; return its result.

    In the result, `why` is None after a success, else one line; `status` is the exit status, or
    None.
    """
    began = time.monotonic()
    status: int | None = None
    try:
        status, why = _run(plan, command, stop_asked, Path(log))
    except OSError as error:
        why = f"{command[0]} cannot be started: {error.strerror}"
    return {"why": why, "status": status, "seconds": time.monotonic() - began}


def _run(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], path: Path
) -> tuple[int | None, str | None]:
    with path.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            env=dict(plan.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with(os.getpid(), plan.umask),
        )
    while True:
        try:
            status = process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if stop_asked():
                process.kill()
                return None, "it was stopped" + _lingering(process)
        else:
            return status, None if status == 0 else _why(path, begin, status)


def _lingering(process: subprocess.Popen[bytes]) -> str:
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return f", and pid {process.pid} is blocked by a file system that does not respond"
    return ""


def _why(path: Path, begin: int, status: int) -> str:
    """Return the last line that the command printed after byte `begin` of its log, or its
    status."""
    if status < 0:
        return f"it was ended by signal {-status}"
    data = path.read_bytes()[begin:][-_TAIL_BYTES:]
    lines = data.decode("utf-8", "replace").split("\n")
    said = (line.strip() for line in reversed(lines) if line.strip())
    return next(said, f"it ended with status {status}")
