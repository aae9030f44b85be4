"""Opens and signals a process by its identity: its pid, its start time and its user."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from zerotoolsd.supervisor.procfs import Process, read_process


def is_of_uid(pid: int, uid: int) -> bool:
    """Return whether the real, effective and saved uid of the process are all `uid`."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return False
    ids = next((line.split()[1:4] for line in lines if line.startswith(b"Uid:")), [])
    return [int(each) for each in ids] == [uid] * 3


def open_process(pid: int, start_ticks: int, uid: int | None = None) -> int | None:
    """Return a pidfd of the process (`pid`, `start_ticks`). Return None if the process is gone,
    or does not belong to the user `uid`.

    The caller closes the pidfd. The pidfd is opened before the start time is read, so that a
    pid that was reused in between is detected.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    process = read_process(pid)
    is_it = process is not None and process.start_ticks == start_ticks and not process.is_over
    if not is_it or (uid is not None and not is_of_uid(pid, uid)):
        os.close(fd)
        return None
    return fd


def kill_process(process: Process, uid: int | None = None) -> bool:
    """Send SIGKILL to `process`, and return False if it is gone or does not belong to the user
    `uid`. Raises PermissionError.
    """
    return signal_process(process.pid, process.start_ticks, signal.SIGKILL, uid)


def signal_process(
    pid: int, start_ticks: int, number: signal.Signals, uid: int | None = None
) -> bool:
    """Send the signal `number` to the process (`pid`, `start_ticks`). Return False if it is
    gone or does not belong to the user `uid`.

    Raises PermissionError.
    """
    fd = open_process(pid, start_ticks, uid)
    if fd is None:
        return False
    try:
        return send_signal(fd, number)
    finally:
        os.close(fd)


def send_signal(pidfd: int, number: signal.Signals, uid: int | None = None) -> bool:
    """Send the signal `number` to the process of `pidfd`. Return False if it is gone or does
    not belong to the user `uid`.

    Raises PermissionError if the process has executed a setuid program, which runs as another user.
    """
    if uid is not None and not is_of_uid(_pid_of(pidfd), uid):
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def _pid_of(pidfd: int) -> int:
    """Return the pid of the process that `pidfd` refers to; -1 if the process is gone."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)
