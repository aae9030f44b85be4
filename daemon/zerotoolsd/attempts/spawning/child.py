"""The supervisor's command, and a supervisor that is a child of the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from zerotoolsd.supervisor import entry

SUPERVISOR_LOG = "supervisor.log"
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "TZ")


def supervisor_command(run_dir: Path) -> tuple[str, ...]:
    """The process that supervises the attempt in `run_dir`."""
    return (sys.executable, "-I", "-S", str(entry.__file__), str(run_dir))


def supervisor_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a supervisor begins with. Its ranks have an environment of their own."""
    return {name: environment[name] for name in _KEPT if name in environment}


def open_log(run_dir: Path) -> int:
    """A descriptor of the supervisor's log, which is made with mode 0600. Raises OSError."""
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
    return os.open(run_dir / SUPERVISOR_LOG, flags, 0o600)


def spawn_child(run_dir: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor of a prepared run directory. Raises OSError."""
    with os.fdopen(open_log(run_dir), "wb") as log:
        return subprocess.Popen(
            supervisor_command(run_dir),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=supervisor_environment(),
            start_new_session=True,
        )
