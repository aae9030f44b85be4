"""Makes the command, the environment and the log file of a supervisor, and starts a supervisor as a
child of the daemon.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor import entry
from zerotoolsd.users.open_as_user import opened_run_directory
from zerotoolsd.users.start_as_submitter import JobUser

SUPERVISOR_LOG = "supervisor.log"
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "TZ")


def supervisor_command(run_dir: Path) -> tuple[str, ...]:
    """Return the command that runs the supervisor of the attempt in `run_dir`."""
    return (sys.executable, "-I", "-S", str(entry.__file__), str(run_dir))


def supervisor_environment(
    user: JobUser | None = None, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment variables of a supervisor that runs as `user` (None: the user of the
    daemon).

    The ranks do not inherit these variables.
    """
    if user is not None:
        return user.environment(environment)
    return {name: environment[name] for name in _KEPT if name in environment}


def open_log(run_dir: Path) -> int:
    """Open the log of the supervisor in `run_dir`, create it with mode 0600 if it is missing,
    and return its file descriptor. Raises OSError.
    """
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with opened_run_directory(run_dir) as base:
        return os.open(base / SUPERVISOR_LOG, flags, 0o600)


def spawn_child(
    run_dir: Path, user: JobUser | None = None, group: Mapping[str, Any] | None = None
) -> subprocess.Popen[bytes]:
    """Start the supervisor of a prepared run directory as a child process. Raises OSError.

    The supervisor runs as `user` in the control group `group` (`run_as_user`). By default it has
    the user and the control group of the daemon.
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
