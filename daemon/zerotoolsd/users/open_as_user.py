"""Lets the daemon open files in directories of users, with the rights of the owners.

A daemon that runs as root takes the user's file rights (fsuid, fsgid) for one access. The kernel
then enforces the user's permissions, makes the user the owner of new files, and counts them against
the user's quota. The rights apply to the whole thread, so no other task may run meanwhile.

`opened_run_directory` opens a run directory once, and gives a path that goes through the file
descriptor. So if the directory is replaced by a link or another file system meanwhile, the
replacement is not followed. Inside the directory, `durable_files.open_regular` and similar
functions open only regular files, follow no link and never block. A forged file can only change
what the daemon shows of that job.

If the daemon is not root, or a directory belongs to root, this module changes no rights.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from zerotoolsd.users.account import Account
from zerotoolsd.users.start_as_submitter import JobUser

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM, errno.E2BIG)
"""Error numbers of openat2 if it does not exist: on a kernel before 5.6, or with a filter that does
not know the call.
"""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


@contextmanager
def file_rights(uid: int, gid: int) -> Iterator[None]:
    """Return a context in which this thread has the file rights of user `uid`.

    Raises PermissionError if that fails.
    """
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    _set(uid, gid)
    try:
        yield
    finally:
        try:
            _set(0, os.getegid())
        except PermissionError:  # the thread must not continue with another user's rights
            os.write(2, b"zerotoolsd: its own file rights cannot be taken back\n")
            os._exit(1)


def rights_of(user: JobUser | None) -> AbstractContextManager[None]:
    """Return a context with the `file_rights` of `user`; None: the daemon's rights are kept."""
    return nullcontext() if user is None else file_rights(user.account.uid, user.account.gid)


def _set(uid: int, gid: int) -> None:
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    # They return the previous value, even if they fail; -1 is an invalid id and changes nothing.
    if (_libc.setfsuid(-1), _libc.setfsgid(-1)) != (_signed(uid), _signed(gid)):
        raise PermissionError(errno.EPERM, f"the file rights of uid {uid}, gid {gid} cannot be set")


def _signed(number: int) -> int:
    return ctypes.c_int(number).value


def owner_of(directory: Path) -> int | None:
    """Return the uid of the directory's owner; None if the owner is the daemon's user, or if the
    directory is missing.

    The owner can be trusted: only root can write into the parent directory, so no user can put
    another directory at this path.
    """
    if os.geteuid() != 0:
        return None
    try:
        found = directory.lstat()
    except OSError:
        return None
    return found.st_uid or None


@contextmanager
def opened_run_directory(run_dir: Path) -> Iterator[Path]:
    """Yield a path to the run directory, for one access with the rights of the directory's owner.

    Raises OSError if the run directory is a symbolic link or the root of another file system.
    """
    if owner_of(run_dir) is None:
        yield run_dir
        return
    fd = _open_directory(run_dir)
    try:
        found = os.fstat(fd)
        base = Path(f"/proc/self/fd/{fd}")
        with file_rights(found.st_uid, found.st_gid):
            yield base
    except OSError as error:
        if isinstance(error.filename, (str, os.PathLike)):
            error.filename = os.fspath(error.filename).replace(str(base), str(run_dir), 1)
        raise
    finally:
        os.close(fd)


def _open_directory(directory: Path) -> int:
    above = os.open(directory.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        resolve = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
        how = _How(_DIRECTORY, 0, resolve)
        name = os.fsencode(directory.name)
        fd = _libc.syscall(_SYS_OPENAT2, above, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in _NO_OPENAT2:
            raise OSError(code, os.strerror(code), str(directory))
        return os.open(directory.name, _DIRECTORY, dir_fd=above)
    finally:
        os.close(above)


def make_owned(directory: Path, account: Account) -> None:
    """Make `directory` with mode 0700 inside a directory of the daemon, and make the user `account`
    its owner.

    Does nothing if this was done before. Raises OSError if the directory belongs to another user.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid == account.uid:
            return
        if found.st_uid != os.geteuid() or os.listdir(fd):  # noqa: PTH208  # of what was opened
            why = f"belongs to uid {found.st_uid}, not to uid {account.uid}"
            raise PermissionError(errno.EPERM, why, str(directory))
        os.fchmod(fd, 0o700)
        os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


def let_through(directory: Path, mode: int) -> None:
    """Set the mode of a directory of the daemon, so that users can reach their files below it.

    Raises OSError.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def drop_groups() -> None:
    """Drop the supplementary groups of the daemon if it runs as root.

    Otherwise the daemon would keep the rights of these groups while it acts with the rights of a
    user.
    """
    if os.geteuid() == 0 and sys.platform == "linux":
        try:
            os.setgroups([])
        except PermissionError:  # it may not switch users either, and serves none
            return
