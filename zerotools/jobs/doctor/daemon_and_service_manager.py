"""Check the daemon: its packages, its service manager, whether it is drained, and its fork
servers.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.doctor.finding import DoctorFinding, ok, problem, warning

LINGERING = Path("var/lib/systemd/linger")
"""The directory in which systemd-logind keeps a file for each user with lingering.

For such a user, the user's systemd continues after the last logout.
"""


WHAT = "warm start"
HOW_TO = "zerotools help warm-start"


def check_daemon_package(why_none: str | None) -> Iterator[DoctorFinding]:
    """Check that the packages of the daemon are installed.

    `why_none` is a sentence about a missing package; None if all are installed.
    """
    if why_none is not None:
        found, _, do = why_none.partition("; ")
        yield warning("the daemon", found, do)


def check_service(
    launch: Mapping[str, Any] | None, uid: int, root: Path = Path("/")
) -> Iterator[DoctorFinding]:
    """Check how the daemon starts processes.

    `launch` is the daemon's report on how it starts processes; None if no daemon runs, or if it is
    too old for this report. `uid` is the user of the daemon. `root` is the directory that contains
    /run and /var.
    """
    if launch is None:
        return
    by, why = str(launch.get("by")), str(launch.get("why"))
    if (trouble := launch.get("trouble")) is not None:
        say, do = (
            (warning, "")
            if by == "child"
            else (problem, "jobs wait until systemd can start them; ")
        )
        yield say(
            "processes of jobs",
            f"systemd could not start the last job ({trouble})",
            f"{do}check journalctl -b; systemd before 243 needs the drop-in of zerotoolsd "
            "--print-unit jobs-as-children (zerotools help install-as-a-service)",
        )
    elif by in ("systemd", "user-systemd"):
        yield ok("processes of jobs", f"are {why}, each attempt in its own systemd unit")
    elif (root / "run/systemd/system").is_dir():
        yield warning(
            "processes of jobs",
            f"are {why}",
            "they inherit the limits of the program that started the daemon; start it as a "
            "unit of systemd (zerotools help install-as-a-service)",
        )
    else:
        yield ok("processes of jobs", f"are {why}")
    if by == "user-systemd" and not _lingers(uid, root):
        yield warning(
            "log-out",
            "systemd ends this user's daemon and jobs when the last session ends",
            "run: loginctl enable-linger",
        )


def check_drain(drain: Mapping[str, Any] | None) -> Iterator[DoctorFinding]:
    """Check whether the daemon is drained, so that it starts no jobs.

    `drain` is the daemon's report; None if the daemon starts jobs.
    """
    if drain is None:
        return
    why = f" ({drain['why']})" if drain.get("why") else ""
    who = drain.get("user") or f"uid {drain.get('uid')}"
    yield warning(
        "the queue",
        f"is drained by {who}{why}: no job starts",
        "when the maintenance is done, run: zerotools undrain",
    )


def manager_group(launch: Mapping[str, Any] | None, uid: int) -> str | None:
    """Return the cgroup of the systemd that starts each attempt as a unit; None if the daemon
    starts attempts without systemd units.
    """
    groups = {"systemd": "/", "user-systemd": f"/user.slice/user-{uid}.slice/user@{uid}.service"}
    return groups.get(str((launch or {}).get("by")))


def _lingers(uid: int, root: Path) -> bool:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return (root / LINGERING / name).exists()


def check_fork_servers(
    warm: Mapping[str, Any] | None, launch: Mapping[str, Any] | None
) -> Iterator[DoctorFinding]:
    """Check the fork servers. If they are switched off, yield no finding.

    `warm` and `launch` are reports of the daemon; None if no daemon runs, or if it is too old for
    them.
    """
    if warm is None or not warm.get("enabled"):
        return
    if (launch or {}).get("by") in ("systemd", "user-systemd"):
        yield warning(
            WHAT,
            "is on, but every job starts cold: supervisors run in separate systemd units",
            f'remove [warm_start], or set [launch] by = "child" ({HOW_TO} lists the costs)',
        )
        return
    if (trouble := warm.get("trouble")) is not None:
        yield warning(
            WHAT,
            f"the last fork server that failed: {trouble}",
            f"jobs start cold until a new fork server is ready; {HOW_TO} explains the reasons",
        )
    servers = warm.get("servers", ())
    for server in servers:
        yield ok(WHAT, _server(server))
    if not servers and trouble is None:
        yield ok(WHAT, "is on; no fork server runs, and the next job starts one")


def _server(server: Mapping[str, Any]) -> str:
    who = f"pid {server['pid']} for {server['python']}"
    if not server["ready"]:
        return f"{who} still imports its packages"
    held, jobs = server["memory_bytes"] / 2**20, count_text(server["jobs"], "job")
    return (
        f"{who}: {held:.0f} MiB of memory, {jobs} started, idle for {server['idle_seconds']:.0f} s"
    )
