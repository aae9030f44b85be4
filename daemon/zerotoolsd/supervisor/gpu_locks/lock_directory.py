"""The directory of the GPUs' locks. Every user may create files in it, so none of them is trusted.

A lock file must be a regular file with one hard link, of any owner. Links are not followed, and
opening a pipe does not block. An existing file is opened without O_CREAT: with
`fs.protected_regular`, the kernel refuses O_CREAT for another user's file in such a directory, even
to root's daemon. A file that others remove or replace is detected, and opened again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from zerotoolsd.supervisor.gpu_locks import holders
from zerotoolsd.supervisor.transient_errors import is_transient

TRIES = 5
"""A file may be made, removed or replaced while it is opened."""
READABLE = 0o644
"""Every user who may open a file may lock it."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_NAME = 200


class NoLocks(Exception):
    """No trusted directory of locks exists. The message gives the reason."""


class LocksUnknown(Exception):
    """The machine lacks a resource, so the directory of locks cannot be checked now. The message
    names the resource."""


class Taken(Exception):
    """The GPU is not ours to use. The text completes "GPU 0 "."""


class GateShut(Exception):
    """Another process takes GPUs now, and may not stop doing so. The message names it."""


def lock_name(uuid: str) -> str:
    """Return the name of a GPU's lock file, made from its UUID; that of a MIG instance may have
    slashes."""
    return re.sub(r"[^A-Za-z0-9-]", "_", uuid)[:_MOST_NAME]


def _never() -> bool:
    return False


class LockDirectory:
    """An open directory of locks. Opening it takes no lock."""

    def __init__(self, path: Path, called: Callable[[int], str] = holders.by_uid) -> None:
        """Open the directory. `called` returns the name of a uid. Raises NoLocks and
        LocksUnknown."""
        self.path, self._called = path, called
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if is_transient(error):
                raise LocksUnknown(f"{path}: {error.strerror}") from None
            raise NoLocks(f"{path}: {error.strerror}") from None
        if (why := _why_distrusted(os.fstat(self._fd))) is not None:
            os.close(self._fd)
            raise NoLocks(f"{path} {why}")

    def close(self) -> None:
        """Close it, and with it the gate. Locks of GPUs stay."""
        os.close(self._fd)

    def try_gate(self) -> bool:
        """Try to take the gate, and return whether this succeeded. It is held until `close`."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait_for_gate(self, seconds: float, pause: float = 0.01) -> None:
        """Wait until the gate is taken. Raises GateShut after `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.try_gate():
            if time.monotonic() > deadline:
                raise GateShut(self.why_shut())
            time.sleep(pause)

    def why_shut(self) -> str:
        """Who has the gate."""
        return (
            f"the locks of the GPUs ({self.path}) are in use by {self._named(os.fstat(self._fd))}"
        )

    def take(self, uuid: str, may_join: Callable[[], bool] = _never) -> int:
        """Lock a GPU; it stays locked while the returned descriptor or a copy of it is open.

        The caller must hold the gate.

        `may_join` returns whether a known process of this queue holds it. Raises Taken.
        """
        name = lock_name(uuid)
        for _ in range(TRIES):
            try:
                fd = self._open(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Taken(self._unopened(name, error)) from None
            try:
                self._lock(fd, may_join)
            except BaseException:  # undone, and raised again
                os.close(fd)
                raise
            if self.is_current(uuid, fd):
                return fd
            os.close(fd)
        raise Taken(f"cannot be locked: {self.path / name} is replaced again and again")

    def is_current(self, uuid: str, fd: int) -> bool:
        """Return whether `fd` is still the file of this GPU."""
        try:
            there = os.stat(lock_name(uuid), dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    def _open(self, name: str) -> int:
        try:
            fd = os.open(name, _FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            fd = self._make(name)
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != READABLE:
            os.fchmod(fd, READABLE)  # the umask, or an end between the two calls of `_make`
        return fd

    def _make(self, name: str) -> int:
        try:
            fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, READABLE, dir_fd=self._fd)
        except FileExistsError:  # another process created it, or a link was there all the time
            fd = os.open(name, _FLAGS, dir_fd=self._fd)
        return fd

    def _lock(self, fd: int, may_join: Callable[[], bool]) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            what = "has other names" if stat.S_ISREG(found.st_mode) else "is not a regular file"
            raise Taken(f"cannot be locked: its file in {self.path} {what}{_owner(found)}")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not may_join():
                raise Taken(self._held(found)) from None
        try:
            # Who does not know of the gate may come between: then it is theirs.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Taken(self._held(found)) from None

    def _held(self, found: os.stat_result) -> str:
        return f"is in use by {self._named(found)}, outside of this queue"

    def _named(self, found: os.stat_result) -> str:
        return holders.named(found, called=self._called)

    def _unopened(self, name: str, error: OSError) -> str:
        try:
            owner = _owner(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except OSError:
            owner = ""
        why = "is a link" if error.errno == errno.ELOOP else f"({error.strerror})"
        return f"cannot be locked: {self.path / name} {why}{owner}"


def _why_distrusted(found: os.stat_result) -> str | None:
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {found.st_uid}, and must be root's"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"has mode {mode:04o}, so others can remove locks; it must be 1777"
    return None


def _owner(found: os.stat_result) -> str:
    return f"; it belongs to uid {found.st_uid}, and root may remove it"
