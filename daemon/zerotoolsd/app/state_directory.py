"""Makes and locks the state directory, so that only one daemon uses it."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

from zerotools.core.errors import BadRequest, DaemonRefused
from zerotools.io.files.exclusive_directory import lock_file
from zerotools.jobs.client.queue_backup import LOCK
from zerotoolsd.supervisor.transient_os_errors import is_transient

_PROC = Path("/proc")
_STARTING_SECONDS = 5.0
"""Seconds to wait for the lock of a killed daemon that was starting a program.

The new process holds the lock until it executes the program.
"""


def lock_state_dir(state_dir: Path) -> tuple[int, ...]:
    """Make `state_dir` (mode 0700) and lock it as long as the returned descriptors are open.

    Raises DaemonRefused, which names the daemon that holds the lock. Raises BadRequest if the
    directory cannot be made, and OSError for an error of the machine.
    """
    if state_dir.exists() and not state_dir.is_dir():
        raise BadRequest(
            f"--state-dir {state_dir}: is a file; name a directory, or a path that does not exist"
        )
    refuse_open_to_others(state_dir.resolve(), os.geteuid())
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = os.open(state_dir / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if is_transient(error):
            raise
        raise BadRequest(
            f"the state directory {state_dir} cannot be used: {error.strerror}; name another "
            "directory with --state-dir"
        ) from None
    try:
        # The lock file may be deleted, and made again by the next daemon, so the directory itself
        # is locked, too. The file names the holder, also for older versions.
        for lock in (directory, fd):
            _flock(lock, fd, state_dir)
    except BlockingIOError:
        holder = _holder(fd)
        os.close(fd)
        os.close(directory)
        do = "stop it, or start with another --state-dir"
        if holder.isdecimal() and _is_stuck(int(holder)):
            do = (
                "that process hangs in the kernel, perhaps on a file system that does not respond "
                "(check mount and dmesg); no other daemon can start before it has ended"
            )
        raise DaemonRefused(
            f"another zerotoolsd, pid {holder or 'unknown'}, uses the state directory "
            f"{state_dir}; {do}",
            status=409,
            code="held",
        ) from None
    except OSError as error:
        os.close(fd)
        os.close(directory)
        if is_transient(error):
            raise
        raise BadRequest(
            f"the state directory {state_dir} cannot be used: {error.strerror}"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd, directory


def _flock(lock: int, fd: int, state_dir: Path) -> None:
    """Lock the file descriptor `lock`.

    Raises BlockingIOError if another process holds the lock. If the process that the pid file `fd`
    names has ended, first wait a moment for the lock.
    """
    give_up = time.monotonic() + _STARTING_SECONDS
    while True:
        try:
            lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, state_dir)
            return
        except BlockingIOError:
            holder = _holder(fd)
            is_over = holder.isdecimal() and not (_PROC / holder).exists()
            if not is_over or time.monotonic() > give_up:
                raise
        time.sleep(0.02)


def _holder(fd: int) -> str:
    return os.pread(fd, 32, 0).decode("ascii", "replace").strip()


_LOOKS, _LOOK_SECONDS = 20, 0.05


def _is_stuck(pid: int, proc: Path = _PROC) -> bool:
    """Return whether process `pid` was killed but still exists: it is a zombie, or hangs in the
    kernel in a wait that cannot be interrupted.
    """
    for _ in range(_LOOKS):
        try:
            text = (proc / str(pid) / "stat").read_bytes()
        except OSError:
            return False
        state = text[text.rindex(b")") + 2 :][:1]
        if state != b"D":
            return state in (b"Z", b"X")
        time.sleep(_LOOK_SECONDS)  # a healthy process also waits for a disk for a moment
    return True


def refuse_open_to_others(state_dir: Path, uid: int) -> None:
    """Raise BadRequest if the daemon runs as root and other users could change files that it
    executes.
    """
    if uid != 0:
        return
    for place in (state_dir, *state_dir.parents):
        try:
            found = place.stat()
        except FileNotFoundError:
            continue  # it is made with the right mode
        why = _open_to_others(found, own=place == state_dir)
        if why is not None:
            raise BadRequest(
                f"the state directory {state_dir}: {place} {why}, so others could change programs "
                "that this daemon runs as root; as root, run: "
                f"chown root {place} && chmod go-w {place}"
            )


def _open_to_others(found: os.stat_result, *, own: bool) -> str | None:
    if found.st_uid != 0:
        return f"belongs to uid {found.st_uid}"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022 and (own or not mode & stat.S_ISVTX):  # in a sticky one others rename nothing
        return f"has mode {mode:04o}"
    return None
