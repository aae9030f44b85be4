"""The supervisor's command, and a supervisor that is a child of the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor import entry
from zerotoolsd.users.job_user import JobUser
from zerotoolsd.users.open_as_user import opened

SUPERVISOR_LOG = "supervisor.log"
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "TZ")


def supervisor_command(run_dir: Path) -> tuple[str, ...]:
    """Return the command that supervises the attempt in `run_dir`."""
    return (sys.executable, "-I", "-S", str(entry.__file__), str(run_dir))


def supervisor_environment(
    user: JobUser | None = None, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a supervisor, as `user` or as the daemon. Its ranks have another
    one."""
    if user is not None:
        return user.environment(environment)
    return {name: environment[name] for name in _KEPT if name in environment}


def open_log(run_dir: Path) -> int:
    """Open the supervisor's log, which is made with mode 0600; return its descriptor. Raises
    OSError."""
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with opened(run_dir) as base:
        return os.open(base / SUPERVISOR_LOG, flags, 0o600)


def spawn_child(
    run_dir: Path, user: JobUser | None = None, group: Mapping[str, Any] | None = None
) -> subprocess.Popen[bytes]:
    """Start the supervisor of a prepared run directory. Raises OSError.

    It runs as `user` in the control group `group` (`run_as_user`), or as the daemon.
    """
    command = supervisor_command(run_dir)
    with os.fdopen(open_log(run_dir), "wb") as log:
        return subprocess.Popen(
            command if user is None else user.command(command, group=group),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=supervisor_environment(user),
            start_new_session=True,
        )
