"""The pipes between the processes of an attempt, by /proc: who writes into what others read.

A program that saves must be able to write. So whoever reads from it runs on, and must not find the
end of the pipe, as it would go on with its next command. `keep_open` opens the pipe for writing
once more: the reader takes all that there is, and waits. Named pipes are not known.
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
"""Bytes that a pipe has room for while its reader stands still; the kernel's default limit."""
_READS, _WRITES = 0o400, 0o200


def written(pid: int, *numbers: str) -> frozenset[str]:
    """The pipes that the output of the process goes to, or these descriptors of it, as /proc names
    them."""
    return frozenset(_targets(pid, numbers or ("1", "2")).values())


def read(pid: int) -> dict[str, str]:
    """The pipes that the process reads and others write into, each with its descriptor."""
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
    """A descriptor that keeps a pipe which the process reads from its end, and that pipe with more
    room; None: it is gone, or not ours. Raises OSError: the machine has no descriptors."""
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except GONE:
        return None
    with suppress(OSError):  # above the user's limit: it stays as it is
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _ROOM:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _ROOM)
    return fd


def is_empty(fd: int) -> bool:
    """Whether nothing is left to read in the pipe."""
    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0] == 0
