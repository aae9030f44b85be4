"""What follows a finished run, when its ranks are gone: commands whose failure loses nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.children.spawning import die_with
from zerotoolsd.supervisor.plan import Plan

LOG = "closing.log"
LOOK_SECONDS = 0.2
KILL_SECONDS = 10.0
_TAIL_BYTES = 4096


def run_closing(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], log: str = LOG
) -> dict[str, Any]:
    """Run `command` to its end, or until a stop is asked for; what came of it.

    `why` is None where it succeeded, else one line.
    """
    began = time.monotonic()
    try:
        why = _run(plan, command, stop_asked, Path(log))
    except OSError as error:
        why = f"{command[0]} cannot be started: {error.strerror}"
    return {"why": why, "seconds": time.monotonic() - began}


def _run(
    plan: Plan, command: Sequence[str], stop_asked: Callable[[], bool], path: Path
) -> str | None:
    with path.open("ab") as log:
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
                return "it was stopped" + _lingering(process)
        else:
            return None if status == 0 else _last_line(path) or f"it ended with status {status}"


def _lingering(process: subprocess.Popen[bytes]) -> str:
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return f", and pid {process.pid} is blocked by a file system that does not respond"
    return ""


def _last_line(path: Path) -> str | None:
    data = path.read_bytes()[-_TAIL_BYTES:]
    lines = data.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
