"""Check the kernel: cgroups, memory pressure, the clock, and resource limits of processes."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zerotools.jobs.doctor.finding import DoctorFinding, ok, problem, warning
from zerotools.sensors.host_sensor import read_pressure

NEEDED_CONTROLLERS = ("memory", "pids")
FEW_DESCRIPTORS = 1024
BUILT = 1_735_689_600.0
"""1 January 2025, as a Unix time. A clock that shows an earlier time was never set."""
_TIME_ERROR = 5
_TIMEX_BYTES = 1024
"""An upper bound for the size of `struct timex` of adjtimex(2) on all platforms."""


def check_kernel(
    root: Path = Path("/"),
    now: Callable[[], float] = time.time,
    is_synchronised: Callable[[], bool | None] | None = None,
    descriptors: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    manager: str | None = None,
) -> Iterator[DoctorFinding]:
    """Check the kernel features that jobs need.

    `root` is the directory that contains /proc and /sys. If systemd starts each attempt as a unit,
    `manager` is the cgroup of that systemd. It is None if the daemon starts attempts itself.
    """
    yield from _cgroups(root, manager)
    if read_pressure(root / "proc/pressure") is None:
        yield warning(
            "pressure",
            "this kernel does not report it (no /proc/pressure)",
            "add psi=1 to the kernel's command line, or jobs are not warned before memory runs out",
        )
    else:
        yield ok("pressure", "the kernel reports it")
    yield from _clock(now(), (is_synchronised or clock_is_synchronised)())
    if 0 <= (most := descriptors()) <= FEW_DESCRIPTORS:
        yield warning(
            "descriptors",
            f"a process may have {most} files open",
            "raise this limit: LimitNOFILE=65536 in the unit, or ulimit -n",
        )


def _cgroups(root: Path, manager: str | None) -> Iterator[DoctorFinding]:
    mounted = root / "sys/fs/cgroup"
    if not (mounted / "cgroup.controllers").is_file():
        yield warning(
            "cgroups",
            "cgroup version 2 is not mounted at /sys/fs/cgroup",
            "jobs with [limits] are refused, and jobs have no separate control groups; boot with "
            "systemd.unified_cgroup_hierarchy=1",
        )
        return
    if manager is not None:
        yield _cgroups_of_units(mounted / manager.lstrip("/"), manager)
        return
    own = _own_cgroup(root)
    place = mounted / own.lstrip("/") if own is not None else mounted
    has = _read_words(place / "cgroup.controllers")
    lacking = [name for name in NEEDED_CONTROLLERS if name not in has]
    if lacking or not os.access(place / "cgroup.subtree_control", os.W_OK):
        why = f"{own or '/'} has no {' and no '.join(lacking)} controller"
        if not lacking:
            why = f"{own or '/'} is not delegated to this user"
        yield warning(
            "cgroups",
            why,
            "a daemon started here refuses jobs with [limits]; start it as a unit with "
            "Delegate=yes (zerotools help install-as-a-service)",
        )
    else:
        yield ok("cgroups", f"{own or '/'} is delegated, with {', '.join(NEEDED_CONTROLLERS)}")


def _cgroups_of_units(place: Path, manager: str) -> DoctorFinding:
    has = _read_words(place / "cgroup.controllers")
    lacking = [name for name in NEEDED_CONTROLLERS if name not in has]
    if not lacking:
        given = f"each attempt has a separate group, with {', '.join(NEEDED_CONTROLLERS)}"
        return ok("cgroups", given)
    return warning(
        "cgroups",
        f"each attempt has a separate group, with no {' and no '.join(lacking)} controller",
        "these limits of jobs are not enforced; "
        + (
            "see cgroup_disable= on the kernel's command line"
            if manager == "/"
            else "as root, run systemctl edit user@.service and set [Service] Delegate=yes"
        ),
    )


def _own_cgroup(root: Path) -> str | None:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _clock(now: float, synchronised: bool | None) -> Iterator[DoctorFinding]:
    if now < BUILT:
        yield problem(
            "clock",
            f"it shows {time.strftime('%Y-%m-%d', time.gmtime(now))}, which cannot be right",
            "set the clock: run timedatectl set-ntp true",
        )
    elif synchronised is False:
        yield warning(
            "clock",
            "it is not synchronised",
            "times in logs and records may be wrong: run timedatectl set-ntp true",
        )
    else:
        yield ok("clock", "is synchronised" if synchronised else "looks right")


def clock_is_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised (adjtimex(2), which changes nothing here);
    None if unknown."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        said = int(ctypes.CDLL(None).adjtimex(state))
    except (OSError, AttributeError):
        return None
    return None if said < 0 else said != _TIME_ERROR
