"""The holders of the flocks of a file: pids and uids, from /proc/locks.

The kernel keeps the pid of the process that took a lock, not those of processes that inherited it:
if that process is gone, no holder can be named. Source: proc(5), Linux fs/locks.c
(lock_get_status).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_LINE = re.compile(
    r"^\d+: FLOCK +ADVISORY +(?:READ|WRITE) +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ", re.M
)
MOST_NAMED = 4


def holders_of(found: os.stat_result, proc: Path = Path("/proc")) -> dict[int, int]:
    """Return the live processes that took a flock of the file `found`, except this one: pid to
    uid."""
    try:
        text = (proc / "locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    pids = [pid for pid in _takers(text, found) if pid not in (0, os.getpid())]
    uids = {pid: uid_of(pid, proc) for pid in pids}
    return {pid: uid for pid, uid in uids.items() if uid is not None}


def _takers(text: str, found: os.stat_result) -> Iterator[int]:
    # A line of a waiting process has "->" in the position of the kind of lock.
    for pid, major, minor, inode in _LINE.findall(text):
        device = os.makedev(int(major, 16), int(minor, 16))
        if device == found.st_dev and int(inode) == found.st_ino:
            yield int(pid)


def uid_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the real uid of a process; None if it is gone or /proc hides it."""
    try:
        # The owner of /proc/PID is root if the process may not be traced.
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("Uid:")), "")
    parts = line.split()
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else None


def by_uid(uid: int) -> str:
    """Name a user by the uid, without looking up a name."""
    return f"uid {uid}"


def named(
    found: os.stat_result, proc: Path = Path("/proc"), called: Callable[[int], str] = by_uid
) -> str:
    """Name the holders for a sentence: `pid 4711 of uid 1002`.

    `called` returns the name of a uid.
    """
    by_uid: dict[int, list[int]] = {}
    for pid, uid in sorted(holders_of(found, proc).items()):
        by_uid.setdefault(uid, []).append(pid)
    if not by_uid:
        return (
            f"a process that cannot be seen from here (its lock belongs to {called(found.st_uid)})"
        )
    return " and ".join(f"{_pids(pids)} of {called(uid)}" for uid, pids in sorted(by_uid.items()))


def _pids(pids: list[int]) -> str:
    listed = ", ".join(map(str, pids[:MOST_NAMED]))
    return f"pid {listed}" if len(pids) == 1 else f"pids {listed}"
