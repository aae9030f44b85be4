"""Locks of the machine's GPUs, so that the queues of several daemons do not use one GPU at once.

Each GPU has a file with its UUID as name, in one directory. The directory belongs to root, and
every user may create files in it (mode 1777). The contents of the files are ignored. There are two
locks (flock):

    the gate    exclusive, on the directory itself, held while a process checks and takes locks
    a GPU       shared, on its file, by a daemon as long as it leases the GPU, and by the supervisor
                and the keeper of each attempt on it as long as they live

A process takes a GPU with an exclusive lock, which fails while any other process has a lock. It
converts the lock to a shared one before it releases the gate. From then on, only processes of the
same queue may take the shared lock too: a supervisor, if its daemon is alive and holds the lock;
and a daemon, if one of its attempts is running on the GPU. So the GPU stays locked as long as the
job runs, even without the daemon, and no descriptor must be passed from process to process. The
next daemon takes the shared lock again. The GPU is unlocked when the last process that holds the
lock ends. Other programs can lock a GPU with `flock FILE COMMAND`; that lock is exclusive.

Every user may create files in the directory, so no file is trusted. A lock file must be a regular
file with one hard link, of any owner. Links are not followed, and opening a pipe does not block. An
existing file is opened without O_CREAT: with `fs.protected_regular`, the kernel refuses O_CREAT for
another user's file in such a directory, even to root's daemon. If others remove or replace a file,
this is detected, and the file is opened again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.supervisor.signal_process import open_process
from zerotoolsd.supervisor.transient_os_errors import is_transient

_LINE = r"(?m)^\d+: FLOCK +ADVISORY +(?:READ|WRITE) +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) "
MOST_NAMED = 4


def holders_of(found: os.stat_result, proc: Path = Path("/proc")) -> dict[int, int]:
    """Return the living processes that hold a flock on the file `found`: pid -> uid. This process
    itself is left out.
    """
    try:
        text = (proc / "locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    pids = [pid for pid in _lock_holders(text, found) if pid not in (0, os.getpid())]
    uids = {pid: uid_of(pid, proc) for pid in pids}
    return {pid: uid for pid, uid in uids.items() if uid is not None}


def _lock_holders(text: str, found: os.stat_result) -> Iterator[int]:
    # A line of a waiting process has "->" in the position of the kind of lock.
    for pid, major, minor, inode in re.findall(_LINE, text):
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


def uid_text(uid: int) -> str:
    """Return a text for the user with this uid, such as `uid 1002`. No user name is looked up."""
    return f"uid {uid}"


def holders_text(
    found: os.stat_result, proc: Path = Path("/proc"), called: Callable[[int], str] = uid_text
) -> str:
    """Return the processes that hold a flock on the file `found`, as text: `pid 4711 of uid
    1002`.

    `called` maps a uid to the text for this user.
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


TRIES = 5
"""Number of tries to open a lock file, because other processes may create, remove or replace it
at the same time.
"""
READABLE = 0o644
"""File mode of a lock file: every user may open the file in order to lock it."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_NAME = 200


class NoLocks(Exception):
    """No directory of lock files exists that can be trusted. The message gives the reason."""


class LocksUnknown(Exception):
    """The directory of lock files cannot be checked now, because the machine lacks a resource. The
    message names the resource.
    """


class GpuTaken(Exception):
    """The GPU cannot be locked, usually because another process has locked it. In a sentence, the
    message follows the name of the GPU.
    """


class GateHeld(Exception):
    """Another process holds the gate, the lock of the directory. The message names the process."""


def lock_name(uuid: str) -> str:
    """Return the name of the GPU's lock file: its UUID, with slashes (MIG) replaced."""
    return re.sub(r"[^A-Za-z0-9-]", "_", uuid)[:_MOST_NAME]


def _never() -> bool:
    return False


class LockDirectory:
    """An open directory of GPU lock files. Opening the directory takes no lock."""

    def __init__(self, path: Path, called: Callable[[int], str] = uid_text) -> None:
        """Open the directory `path`. `called` maps a uid to a text for messages. Raises NoLocks
        and LocksUnknown.
        """
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
        """Close the directory and release the gate. GPUs that were locked stay locked."""
        os.close(self._fd)

    def try_gate(self) -> bool:
        """Try once to lock the gate. Return whether this process holds the gate now. It holds the
        gate until `close`.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait_for_gate(self, seconds: float, pause: float = 0.01) -> None:
        """Wait until this process has locked the gate. Raises GateHeld after `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.try_gate():
            if time.monotonic() > deadline:
                raise GateHeld(self.gate_in_use_text())
            time.sleep(pause)

    def gate_in_use_text(self) -> str:
        """Return a sentence that names the process that holds the gate."""
        holders = self._holders_text(os.fstat(self._fd))
        return f"the locks of the GPUs ({self.path}) are in use by {holders}"

    def acquire(self, uuid: str, may_join: Callable[[], bool] = _never) -> int:
        """Lock the GPU `uuid` and return a file descriptor. The lock lasts until all copies of
        the descriptor are closed.

        The caller must hold the gate. `may_join` returns whether a process of this queue is
        known to hold the lock, so that the lock may be shared. Raises GpuTaken.
        """
        name = lock_name(uuid)
        for _ in range(TRIES):
            try:
                fd = self._open(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise GpuTaken(self._open_error_text(name, error)) from None
            try:
                self._lock(fd, may_join)
            except BaseException:  # undone, and raised again
                os.close(fd)
                raise
            if self.is_current(uuid, fd):
                return fd
            os.close(fd)
        raise GpuTaken(f"cannot be locked: {self.path / name} is replaced again and again")

    def is_current(self, uuid: str, fd: int) -> bool:
        """Return whether the descriptor `fd` refers to the file that is now the lock file of
        the GPU `uuid`. Another process may have replaced the file.
        """
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
            raise GpuTaken(f"cannot be locked: its file in {self.path} {what}{_owner(found)}")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not may_join():
                raise GpuTaken(self._in_use_text(found)) from None
        try:
            # A program that does not use the gate may lock the GPU in between; it keeps the GPU.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GpuTaken(self._in_use_text(found)) from None

    def _in_use_text(self, found: os.stat_result) -> str:
        return f"is in use by {self._holders_text(found)}, outside of this queue"

    def _holders_text(self, found: os.stat_result) -> str:
        return holders_text(found, called=self._called)

    def _open_error_text(self, name: str, error: OSError) -> str:
        try:
            owner = _owner(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except OSError:
            owner = ""
        why = "is a link" if error.errno == errno.ELOOP else f"({error.strerror})"
        return f"cannot be locked: {self.path / name} {why}{owner}"


def _why_distrusted(found: os.stat_result) -> str | None:
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {found.st_uid}, but must belong to root"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"has mode {mode:04o}, so others can remove locks; it must be 1777"
    return None


def _owner(found: os.stat_result) -> str:
    return f"; it belongs to uid {found.st_uid}, and root may remove it"


GATE_SECONDS = 20.0
"""Seconds to wait until the gate is free. A daemon holds the gate for milliseconds, during one
scheduler pass.
"""


class AttemptLocks(NamedTuple):
    """The file descriptors of an attempt's GPU locks, or why the attempt may not start."""

    descriptors: tuple[int, ...] = ()
    refusal: str | None = None

    def close(self) -> None:
        """Close the descriptors; forks of this process still hold the locks."""
        for fd in self.descriptors:
            os.close(fd)


def acquire_locks(wanted: Mapping[str, Any], seconds: float = GATE_SECONDS) -> AttemptLocks:
    """Lock the GPUs that the daemon lists in `wanted`. If `wanted` is empty, lock no GPU.

    `wanted` has these keys:

        directory: the directory of the lock files.
        gpus: the UUIDs of the GPUs.
        daemon: the daemon's process.
        held: the UUIDs of the GPUs that the daemon itself has locked.

    `seconds` is the longest wait for the gate (the lock of the directory).
    """
    if not wanted:
        return AttemptLocks()
    fds: list[int] = []
    refusal = None
    try:
        directory = LockDirectory(Path(wanted["directory"]))
    except NoLocks as error:
        return AttemptLocks(refusal=f"the locks of the GPUs are gone: {error}")
    except LocksUnknown as error:
        return AttemptLocks(refusal=f"the locks of the GPUs cannot be checked: {error}")
    try:
        directory.wait_for_gate(seconds)
        for uuid in wanted["gpus"]:
            # No descriptor is passed on, because systemd passes none when it starts the supervisor.
            fds.append(
                directory.acquire(uuid, lambda: uuid in wanted["held"] and _lives(wanted["daemon"]))  # noqa: B023  # called at once
            )
    except GateHeld as error:
        refusal = str(error)
    except GpuTaken as error:
        refusal = f"{uuid} {error}"
    finally:
        directory.close()
    locks = AttemptLocks(tuple(fds), refusal)
    if refusal is None:
        return locks
    locks.close()
    return AttemptLocks(refusal=refusal)


def _lives(process: Mapping[str, int]) -> bool:
    pid = process["pid"]
    fd = open_process(pid, process["start_ticks"])
    if fd is None:
        return read_process(pid) is None and _is_hidden(pid)
    os.close(fd)
    return True


def _is_hidden(pid: int) -> bool:
    """Return whether the process `pid` lives although /proc does not show it.

    With the mount option `hidepid`, /proc hides root's daemon from a user's supervisor. If a new
    process has got the same pid, this is not detected.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not select.select([fd], [], [], 0)[0]
    finally:
        os.close(fd)
