"""Chooses how supervisors are started: as children of the daemon, or by systemd."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadRequest

AUTO, CHILD, SYSTEMD = "auto", "child", "systemd"
VARIABLE = "ZEROTOOLS_LAUNCH"
"""Environment variable that a systemd unit sets to "systemd" if its sandbox is too strict for
jobs.

It is used if the configuration has the value "auto".
"""
BOOTED = Path("/run/systemd/system")
"""Path that exists if systemd is the init system of this machine (sd_booted(3))."""
PROGRAM = "systemd-run"
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class LaunchBackend:
    """How supervisors are started.

    Attributes:
        program: the path of systemd-run; None: supervisors are children of the daemon.
        of_user: whether the systemd of the daemon's user is used instead of the system's.
        seconds: the timeout of systemd-run, which can take a second on a machine under load.
        may_be_child: whether supervisors are started as children if systemd fails.
        why: how supervisors are started and why, as the end of a sentence that begins "supervisors
            are".
    """

    program: str | None
    why: str
    of_user: bool = False
    seconds: float = 30.0
    may_be_child: bool = True


CHILDREN = LaunchBackend(program=None, why="children of the daemon")


def select_backend(
    by: str,
    environment: Mapping[str, str] = os.environ,
    *,
    uid: int | None = None,
    booted: Callable[[], bool] = BOOTED.is_dir,
) -> LaunchBackend:
    """Return how the daemon starts supervisors. `by` is the value of `launch.by` in the daemon's
    configuration.

    Raises BadRequest if `by` is unknown, or if it requires systemd and systemd does not run this
    machine.
    """
    uid = os.geteuid() if uid is None else uid
    wanted = environment.get(VARIABLE, AUTO) if by == AUTO else by
    if wanted not in (AUTO, CHILD, SYSTEMD):
        raise BadRequest(f'{VARIABLE} = "{wanted}": must be auto, systemd or child')
    is_unit = _started_by_systemd(environment)
    of_user = uid != 0 or (is_unit and "MANAGERPID" in environment)
    program = shutil.which(PROGRAM, path=environment.get("PATH") or _USUAL_PATH)
    missing = _missing(environment, program, of_user=of_user, booted=booted())
    if wanted == SYSTEMD:
        if missing is not None and not booted():
            raise BadRequest(f'launch.by = systemd: {missing}; set launch.by = "child"')
        why = "started by systemd, as configured"
        return LaunchBackend(
            program=program or PROGRAM, why=why, of_user=of_user, may_be_child=False
        )
    if wanted == CHILD:
        return LaunchBackend(program=None, why="children of the daemon, as configured")
    if not is_unit:
        missing = missing or "systemd did not start the daemon"
    if missing is not None:
        return LaunchBackend(program=None, why=f"children of the daemon: {missing}")
    return LaunchBackend(program=program, why="started by systemd", of_user=of_user)


def _started_by_systemd(environment: Mapping[str, str]) -> bool:
    """Return whether systemd itself has started this process.

    A shell in a unit inherits SYSTEMD_EXEC_PID, but its own pid differs from that value. systemd
    before version 248 does not set the variable; then the process must have NOTIFY_SOCKET, which
    shells do not have.
    """
    pid = environment.get("SYSTEMD_EXEC_PID")
    return pid == str(os.getpid()) if pid is not None else "NOTIFY_SOCKET" in environment


def _missing(
    environment: Mapping[str, str], program: str | None, *, of_user: bool, booted: bool
) -> str | None:
    if not booted:
        return "systemd is not the init system of this machine"
    if program is None:
        return f"{PROGRAM} is not on PATH"
    if of_user and ("XDG_RUNTIME_DIR" not in environment or "MANAGERPID" not in environment):
        return (
            "the daemon is not a service of the user's systemd, and only root can start system "
            "units"
        )
    return None
