"""Finds the pipes that a process reads and writes, and keeps the write ends of pipes open during a
stop.

All functions raise OSError if the machine has no descriptors left.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Collection
from contextlib import suppress

from zerotoolsd.supervisor.procfs import (
    GONE,
)

_ROOM = 1 << 20
"""Size in bytes that a pipe gets, so that programs can write while the reader of the pipe is
stopped. It is the kernel's default limit.
"""
_READS, _WRITES = 0o400, 0o200


def pipes_written(pid: int, *numbers: str) -> frozenset[str]:
    """Return the pipes to which the process `pid` writes, as /proc names them (`pipe:[4711]`).

    `numbers` are the file descriptors to check (default: standard output and standard error).
    """
    return frozenset(_targets(pid, numbers or ("1", "2")).values())


def pipes_read(pid: int) -> dict[str, str]:
    """Return the pipes that the process `pid` reads and to which other processes write: name of the
    pipe -> file descriptor.
    """
    return ends_of(pid)[0]


def ends_of(pid: int) -> tuple[dict[str, str], frozenset[str]]:
    """Return the pipes that the process `pid` reads, as `pipes_read` does, and the names of all
    pipes that it has open for writing.
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # names alone
    except GONE:
        return {}, frozenset()
    modes = {number: _mode(pid, number) for number in numbers}
    targets = _targets(pid, numbers)
    own = frozenset(target for number, target in targets.items() if modes[number] & _WRITES)
    reads = {
        target: number
        for number, target in targets.items()
        if modes[number] & _READS and target not in own
    }
    return reads, own


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
    """Open the write end of the pipe at descriptor `number` of the process `pid`, and enlarge
    the pipe. Return the new descriptor.

    While this descriptor is open, the process does not see the end of the pipe. Return None
    if the pipe is gone or not accessible. Raises OSError if the machine has no file
    descriptors left.
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
    """Return whether the pipe of the descriptor `fd` contains no unread data."""
    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0] == 0


def has_unread(pid: int, number: str) -> bool:
    """Return whether the pipe at descriptor `number` of the process `pid` contains unread data."""
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except GONE:
        return False
    try:
        return not is_empty(fd)
    finally:
        os.close(fd)
