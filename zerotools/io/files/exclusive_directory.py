"""Makes a directory or a file that only this run can write, for an output that gets its final name
later.

The name is known in advance, and other users may write to the parent directory, for example under
`/tmp` or in a group's directory. Another user may create one of these under that name:

    out.partial -> /home/victim        a link: the run would remove files in its target
    out.partial/                       a directory, in which its owner can change the output

So a link is never followed, and a directory that another user owns is refused. The directory is
unreadable to other users until it is complete. If a file exists under the name of a new file, it is
removed first, and never opened: opening a link for writing would empty its target.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from zerotools.core.errors import BadRequest

_PROBE = ".zerotools-mode"
_PRIVATE = 0o700
_NO_LOCKS = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def lock_file(descriptor: int, how: int, path: Path) -> None:
    """Lock an open file or directory, as `flock` does. `path` is its name in errors.

    Raises BlockingIOError if another process has the lock. Raises OSError, which says what to do if
    the file system has no locks (Lustre and NFS by some mount options).
    """
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        why = error.strerror or ""
        if error.errno in _NO_LOCKS:
            why = (
                f"its file system has no locks ({why}); mount it with locks (Lustre: -o flock), or "
                "choose another file system"
            )
        raise OSError(error.errno, why, str(path)) from None


class OwnDirectory:
    """A locked directory at `path`, made by this run or by an earlier run of the same user."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Make the directory if it does not exist, and lock it. With `shared`, several runs can
        have the lock at the same time, if all of them use `shared`.

        Raises:
            BlockingIOError: another run has the lock.
            BadRequest: the entry at `path` is a link, or belongs to another user.
            OSError: the directory cannot be made.
        """
        self.path = path
        while True:
            self._descriptor = _made(path)
            try:
                how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                lock_file(self._descriptor, how | fcntl.LOCK_NB, path)
                if self.is_at(path):
                    os.fchmod(self._descriptor, _mode(self._descriptor) & ~0o777 | _PRIVATE)
                    return
            except BaseException:  # undone, and raised again
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)

    def is_at(self, path: Path) -> bool:
        """Return whether the entry at `path` is this directory, and neither a link nor another
        directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.lstat())
        except FileNotFoundError:
            return False

    def open_up(self) -> None:
        """Give the directory the permissions that a new directory in its parent usually gets."""
        probe = self.path / _PROBE
        probe.mkdir(exist_ok=True)  # a killed run may have left it
        mode = stat.S_IMODE(probe.stat().st_mode)
        probe.rmdir()
        os.fchmod(self._descriptor, mode)

    def copy_access_from(self, old: os.stat_result) -> None:
        """Give the directory the owner and the permissions in `old`, as `copy_access` does."""
        copy_access(old, self._descriptor)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _made(path: Path) -> int:
    try:
        path.mkdir(mode=_PRIVATE)
    except FileExistsError:
        if path.is_symlink():
            raise BadRequest(
                f"{path} is a symbolic link instead of the directory of an unfinished run; "
                "zerotools does not follow it: see who created it, and remove it"
            ) from None
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        os.close(descriptor)
        raise BadRequest(
            f"{path} belongs to another user (uid {owner}), who could change the output; choose "
            "another directory, or ask that user to remove this one"
        )
    return descriptor


def _mode(descriptor: int) -> int:
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


def new_text_file(path: Path) -> IO[str]:
    """Make an empty file in UTF-8 and open it for writing. An existing entry of that name is
    removed first.

    Raises:
        OSError: the file cannot be made, or another process makes it at the same time.
    """
    path.unlink(missing_ok=True)
    return path.open("x", encoding="utf-8")


def copy_owner(old: os.stat_result, new: Path | int) -> None:
    """Give `new`, a path or a descriptor, the owner and the group of `old`. Raises OSError."""
    made = os.stat(new)  # noqa: PTH116  # also a descriptor
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        os.chown(new, old.st_uid, old.st_gid)


def copy_access(old: os.stat_result, new: Path | int) -> None:
    """Give `new`, a path or a descriptor, the owner, the group and the permissions of `old`.

    Only root can give a file to another user. If the owner cannot be changed, the permissions are
    not changed either: with them, the present owner could lose access to the file.
    """
    with suppress(OSError):  # not permitted, or a file system without owners
        copy_owner(old, new)
    if os.stat(new).st_uid == old.st_uid:  # noqa: PTH116  # also a descriptor
        os.chmod(new, stat.S_IMODE(old.st_mode))  # noqa: PTH101
