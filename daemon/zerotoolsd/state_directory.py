"""The state directory, and the one daemon that holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from zerotools.core.errors import BadRequest, DaemonRefused

LOCK = "daemon.lock"


def lock_state_dir(state_dir: Path) -> int:
    """Make `state_dir` (mode 0700) and lock it; the lock lasts as long as the process.

    Raises DaemonRefused naming the daemon that holds it, BadRequest where it cannot be made.
    """
    if state_dir.exists() and not state_dir.is_dir():
        raise BadRequest(
            f"--state-dir {state_dir}: is a file; name a directory, or a path that does not exist"
        )
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(state_dir / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadRequest(f"the state directory {state_dir}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise DaemonRefused(
            f"another zerotoolsd, pid {holder or 'unknown'}, holds {state_dir}; "
            "stop it, or start with another --state-dir",
            status=409,
            code="held",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
