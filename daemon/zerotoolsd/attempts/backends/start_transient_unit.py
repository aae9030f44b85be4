"""Starts a supervisor as a transient systemd service, with `systemd-run`.

The service has its own sandbox and cgroup, and continues when the daemon's unit ends. Its name
contains the job, the attempt, and the start of the token: `zerotools-job-7-2-3f9c01aa.service`. The
token is needed because two daemons may each have a job 7. systemd refuses a second service with the
same name, so the attempt gets only one.

    daemon        systemd-run --unit=zerotools-job-7-2-3f9c01aa.service ... supervisor RUN_DIR
    systemd       starts the supervisor, and waits for its READY=1 (Type=notify)
    supervisor    takes the lock, writes run.json, sends READY=1
    systemd-run   ends with 0: run.json exists. With another status: the service did not start,
                  or another one of this name exists

`systemd-run` may be killed at any moment, because the run directory shows the status of the
attempt.

Sources: systemd-run(1), systemd.service(5), systemd.kill(5), systemd.resource-control(5).
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend
from zerotoolsd.attempts.backends.spawn_supervisor import (
    SUPERVISOR_LOG,
    open_log,
    supervisor_command,
    supervisor_environment,
)
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_plan import UNIT_PREFIX
from zerotoolsd.users.open_as_user import opened_run_directory
from zerotoolsd.users.start_as_submitter import USUAL_PATH, JobUser

SLICE = "zerotools.slice"
STOP_SECONDS = 60.0
"""Seconds that systemd waits for the unit at the shutdown of the machine, in addition to the
time that the job has to save.
"""
_LONGEST_ANSWER = 2000

_EVERYWHERE = {
    "Type": "notify",
    # The supervisor is a child of the keeper, which is the service's main process.
    "NotifyAccess": "all",
    # No timeout: the daemon reports a hung disk, and the lock excludes a second supervisor.
    "TimeoutStartSec": "infinity",
    # systemd asks the keeper to end, and the keeper asks the supervisor. If the keeper is killed,
    # the supervisor must continue, to record how the ranks ended.
    "KillMode": "process",
    "Delegate": "yes",
    # If the kernel kills one rank for lack of memory, the supervisor handles it, not systemd.
    "OOMPolicy": "continue",
    "TasksMax": "infinity",
    "UMask": "0077",
}
_OF_SYSTEM = {
    # When memory runs out, ranks are killed first and supervisors last.
    "OOMScoreAdjust": "-900",
    # Pinned memory and RDMA need more than the 8 MiB of services.
    "LimitMEMLOCK": "infinity",
    # At a shutdown the unit ends, and its job saves, before these units stop.
    "After": "network.target remote-fs.target nvidia-persistenced.service",
    # Privileges that no training needs.
    "NoNewPrivileges": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "RestrictRealtime": "yes",
    "SystemCallArchitectures": "native",
    "CapabilityBoundingSet": (
        "~CAP_SYS_BOOT CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYS_PACCT CAP_WAKE_ALARM "
        "CAP_BLOCK_SUSPEND CAP_LEASE CAP_LINUX_IMMUTABLE CAP_SYS_TTY_CONFIG CAP_AUDIT_CONTROL "
        "CAP_AUDIT_WRITE CAP_AUDIT_READ CAP_BPF CAP_SYSLOG CAP_SYS_TIME"
    ),
}


def unit_name(attempt: AttemptRow) -> str:
    """Return the name of the attempt's systemd service, unique on this machine."""
    return f"{UNIT_PREFIX}{attempt.job_id}-{attempt.number}-{attempt.token[:8]}.service"


def is_in_unit(cgroups: str, token: str) -> bool:
    """Return whether a process belongs to the systemd unit of the attempt with this token.
    `cgroups` is the text of its /proc/PID/cgroup.

    A process can change its environment, session and parent, but not its unit.
    """
    return re.search(rf"/{UNIT_PREFIX}\d+-\d+-{token[:8]}\.service(/|$)", cgroups, re.M) is not None


def unit_command(
    way: LaunchBackend, attempt: AttemptRow, grace_seconds: float, user: JobUser | None = None
) -> tuple[str, ...]:
    """Return the `systemd-run` command that starts the supervisor of a prepared attempt.

    The supervisor runs as `user`, or as the user of the daemon. The command contains nothing of the
    job except the run directory, because every user can read the properties of a unit.
    """
    run_dir = Path(attempt.run_dir)
    command = supervisor_command(run_dir)
    if user is not None:
        command = user.command(command, output=run_dir / SUPERVISOR_LOG)
    return (
        way.program or "",
        "--user" if way.of_user else "--system",
        *("--quiet", "--collect", "--no-ask-password"),
        f"--unit={unit_name(attempt)}",
        f"--slice={SLICE}",
        f"--description=zerotools job {attempt.job_id}, attempt {attempt.number}",
        *(f"--setenv={name}={value}" for name, value in supervisor_environment(user).items()),
        *(f"--property={each}" for each in _properties(way, run_dir, grace_seconds, user)),
        "--",
        # systemd replaces $NAME in the words of a command.
        *(word.replace("$", "$$") for word in command),
    )


def _properties(
    way: LaunchBackend, run_dir: Path, grace_seconds: float, user: JobUser | None
) -> Iterator[str]:
    of_system = {} if way.of_user else _OF_SYSTEM
    of_user = {} if user is None else dict(_of(user))
    for name, value in (_EVERYWHERE | of_system | of_user).items():
        yield f"{name}={value}"
    yield f"TimeoutStopSec={int(grace_seconds + STOP_SECONDS)}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield f"LimitNOFILE={_limit(soft)}:{_limit(hard)}"
    if user is None:
        for stream in ("StandardOutput", "StandardError"):
            yield f"{stream}=append:{run_dir / SUPERVISOR_LOG}"


def _of(user: JobUser) -> Iterator[tuple[str, str]]:
    """Yield the properties (name, value) of the systemd unit for a job of the user `user`, who is
    not the daemon's user.

    systemd switches to that user, and lets the user manage the unit's control group. The
    administrator's limits are set on the unit itself, where the user cannot change them. The
    supervisor opens the log itself: systemd would open the log as root, and follow a link that the
    user has made.
    """
    account = user.account
    yield "User", str(account.uid)
    yield "Group", str(account.gid)
    yield "SupplementaryGroups", " ".join(map(str, account.groups))
    yield "CapabilityBoundingSet", ""
    yield "AmbientCapabilities", ""
    yield "OOMScoreAdjust", "0"
    if user.processes is not None:
        yield "LimitNPROC", str(user.processes)
    if user.job_processes is not None:
        yield "TasksMax", str(user.job_processes)
    if user.job_memory is not None:
        yield "MemoryMax", str(user.job_memory)


def _limit(value: int) -> str:
    return "infinity" if value == resource.RLIM_INFINITY else str(value)


@dataclass(frozen=True)
class UnitRequest:
    """A running `systemd-run`, which has a timeout of `seconds`.

    `answer` is a file descriptor of its output. `log_bytes` is the size that the
    supervisor's log had when `systemd-run` was started.
    """

    process: subprocess.Popen[bytes]
    seconds: float
    answer: int
    log: Path
    log_bytes: int

    def failure(self) -> str | None:
        """Return the reason why the `systemd-run`, which has ended, did not start the
        supervisor; None if it did.

        The supervisor that it started may already have ended with an error.
        """
        if self.process.returncode == 0 or self._supervisor_spoke():
            return None
        said = os.pread(self.answer, _LONGEST_ANSWER, 0).decode("utf-8", "replace").splitlines()
        if self.process.returncode < 0:
            return f"systemd-run did not answer in time (signal {-self.process.returncode})"
        # systemd-run prints nothing if the service began and ended at once.
        status = f"the supervisor ended before its first report (status {self.process.returncode})"
        return f"systemd-run: {said[0] if said else status}"

    def _supervisor_spoke(self) -> bool:
        try:
            with opened_run_directory(self.log.parent) as base:
                return (base / self.log.name).lstat().st_size > self.log_bytes
        except OSError:
            return False

    def close(self) -> None:
        """Close the file descriptor of the output. The process continues."""
        os.close(self.answer)


def request_unit(
    way: LaunchBackend, attempt: AttemptRow, grace_seconds: float, user: JobUser | None = None
) -> UnitRequest:
    """Ask systemd to start the supervisor of a prepared attempt. Raises OSError."""
    run_dir = Path(attempt.run_dir)
    # systemd would create the log with its own umask.
    log = open_log(run_dir)
    try:
        log_bytes = os.fstat(log).st_size
    finally:
        os.close(log)
    answer = os.memfd_create("systemd-run", os.MFD_CLOEXEC)
    try:
        process = subprocess.Popen(
            unit_command(way, attempt, grace_seconds, user),
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=answer,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
    except OSError:
        os.close(answer)
        raise
    return UnitRequest(process, way.seconds, answer, run_dir / SUPERVISOR_LOG, log_bytes)


def _environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    names = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
    found = {name: environment[name] for name in names if name in environment}
    return {"PATH": environment.get("PATH") or USUAL_PATH, "LC_ALL": "C", **found}
