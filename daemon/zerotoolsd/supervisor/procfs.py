"""Who a process is, and who descends from it, by /proc. A pid alone is never an identity."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat. (`pid`, `start_ticks`) names a process within one boot."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    rss_bytes: int


@cache
def boot_id() -> str:
    """Differs after every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int, read: Callable[[Path], bytes] = Path.read_bytes) -> Process | None:
    """The process `pid`, a zombie too; None if there is none.

    None also where /proc hides it, as it does those of other users with `hidepid=1`.
    """
    try:
        text = read(Path(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may hold anything; fields are counted from its end.
    parts = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        state=parts[0].decode("ascii"),
        parent=int(parts[1]),
        start_ticks=int(parts[19]),
        rss_bytes=int(parts[21]) * PAGE,
    )


def pids() -> set[int]:
    """Those of every process that /proc shows."""
    return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()}


def oom_kills(read: Callable[[Path], bytes] = Path.read_bytes) -> int | None:
    """How many processes the kernel has ended for lack of memory since the boot, of any cgroup;
    None where it does not say."""
    try:
        lines = read(Path("/proc/vmstat")).splitlines()
    except OSError:
        return None
    counts = (line.split()[1] for line in lines if line.startswith(b"oom_kill "))
    return next(map(int, counts), None)


def processes() -> dict[int, Process]:
    """Every process that /proc shows, by pid."""
    found = map(read_process, pids())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, table: Mapping[int, Process]) -> list[Process]:
    """Children of `root`, their children and so on, without `root`."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    return list(_below(root, children))


def _below(root: int, children: Mapping[int, list[Process]]) -> Iterator[Process]:
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process.pid, ())


def open_process(pid: int, start_ticks: int) -> int | None:
    """A pidfd of exactly this process; None if it is gone. The caller closes it.

    The pidfd comes first and the start time second: a pid reused in between shows.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    process = read_process(pid)
    if process is None or process.start_ticks != start_ticks or process.state in "ZX":
        os.close(fd)
        return None
    return fd


def kill_process(process: Process) -> bool:
    """SIGKILL exactly this process; False if it is gone."""
    fd = open_process(process.pid, process.start_ticks)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
