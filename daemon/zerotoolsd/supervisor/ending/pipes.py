"""The pipes between the processes of an attempt, read from /proc: which process writes to which.

A program that saves must be able to write. So the process that reads from it continues, and must
not reach the end of the pipe, because it would continue with its next command. `keep_open` opens
the pipe for writing once more: the reader reads all data and then waits. Named pipes are not
supported.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Collection
from contextlib import suppress

from zerotoolsd.supervisor.procfs import GONE

_ROOM = 1 << 20
"""Bytes that a pipe can hold while its reader is stopped; the kernel's default limit."""
_READS, _WRITES = 0o400, 0o200


def written(pid: int, *numbers: str) -> frozenset[str]:
    """Return the pipes of the process's output, or of these descriptors, by their names in
    /proc."""
    return frozenset(_targets(pid, numbers or ("1", "2")).values())


def read(pid: int) -> dict[str, str]:
    """Return the pipes that the process reads and others write into, with the descriptor of
    each."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # names alone
    except GONE:
        return {}
    modes = {number: _mode(pid, number) for number in numbers}
    targets = _targets(pid, numbers)
    own = {target for number, target in targets.items() if modes[number] & _WRITES}
    return {
        target: number
        for number, target in targets.items()
        if modes[number] & _READS and target not in own
    }


def _targets(pid: int, numbers: Collection[str]) -> dict[str, str]:
    found = {}
    for number in numbers:
        with suppress(*GONE):
            target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115  # "pipe:[7]"
            if target.startswith("pipe:"):
                found[number] = target
    return found


def _mode(pid: int, number: str) -> int:
    try:
        return os.lstat(f"/proc/{pid}/fd/{number}").st_mode  # of the link itself
    except GONE:
        return 0


def keep_open(pid: int, number: str) -> int | None:
    """Open a pipe that the process reads, so that it never sees its end, and enlarge the pipe.

    Returns None if the pipe is gone or is not accessible. Raises OSError if the machine has no
    descriptors.
    """
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except GONE:
        return None
    with suppress(OSError):  # above the user's limit: it stays as it is
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _ROOM:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _ROOM)
    return fd


def is_empty(fd: int) -> bool:
    """Return whether the pipe contains no unread data."""
    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0] == 0
