"""The exit status of a process by its pidfd, without being its parent.

From Linux 6.15 on, the kernel keeps the exit status of a process for holders of a pidfd of it:
`ioctl(PIDFD_GET_INFO)` with `PIDFD_INFO_EXIT` returns it after the parent has collected it
(include/uapi/linux/pidfd.h). Before that, while it is a zombie, the last field of /proc/PID/stat
has the same value for its user (`exit_code`, proc(5)). An older kernel has only the latter, and
most parents collect at once: then the status is unknown.

    struct pidfd_info { u64 mask, cgroupid; u32 pid, tgid, ppid, ruid, rgid, euid, egid, suid,
                        sgid, fsuid, fsgid; s32 exit_code; }                        64 bytes
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from dataclasses import dataclass

from zerotoolsd.supervisor.procfs import zombie_status

_INFO = struct.Struct("=QQ11Ii")
_EXIT = 1 << 3
PIDFD_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""`_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`."""
COLLECTED_SECONDS = 5.0
"""Seconds that the parent of an ended process may take to collect its status."""


@dataclass(frozen=True)
class ExitStatus:
    """The exit status of a process, encoded as in wait(2)."""

    status: int

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if a signal ended it."""
        return None if os.WIFSIGNALED(self.status) else os.waitstatus_to_exitcode(self.status)

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if it ended by itself."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None


def exit_status(pidfd: int, pid: int, start_ticks: int) -> ExitStatus | None:
    """Return the status of an ended process; None if it is not known any more."""
    if (found := _kept(pidfd)) is not None:
        return found
    if (status := zombie_status(pid, start_ticks)) is not None:
        return ExitStatus(status & 0xFFFF)
    _await_collected(pidfd)  # it was collected meanwhile, or is about to be
    return _kept(pidfd)


def _kept(pidfd: int) -> ExitStatus | None:
    room = bytearray(_INFO.pack(_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, room)
    except OSError:
        return None  # an older kernel
    mask, *_, code = _INFO.unpack(room)
    return ExitStatus(code & 0xFFFF) if mask & _EXIT else None


def _await_collected(pidfd: int) -> None:
    waiting = select.poll()
    waiting.register(pidfd, 0)  # POLLHUP comes unasked, when the status was collected
    waiting.poll(COLLECTED_SECONDS * 1000)
