"""Output that is there whole, or not at all.

Everything is written below `<destination>.partial`, flushed, and renamed when it is complete. The
partial directory is locked while it is written, so that two runs never share one. A run that was
killed or interrupted leaves only that directory, which the next run resumes or clears; one that
failed leaves nothing, because what failed once fails again, and a full disk needs its room back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

from zerotools.core.errors import BadRequest
from zerotools.io.files import sync_directory

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def partial_of(destination: Path) -> Path:
    """The directory in which `destination` is made."""
    whole = destination.absolute()
    return whole.with_name(whole.name + ".partial")


class Staging:
    """A directory in the making. Use as a context; call `commit` inside it."""

    def __init__(self, destination: Path, *, overwrite: bool = False, keep: bool = False) -> None:
        """`destination` must not exist, unless `overwrite` is set: then it is replaced whole.
        With `keep`, the directory begins with what an earlier run left in it, which stays there
        until `take_over` says that it is ours.

        Raises:
            BadRequest: the destination exists, its parent is no directory or is not writable, or
                another run is writing it.
        """
        self.destination = destination.absolute()
        self.directory = partial_of(self.destination)
        self._overwrite = overwrite
        self._keep = keep
        self._lock = -1
        self._committed = False

    def __enter__(self) -> Staging:
        if os.path.lexists(self.destination) and not self._overwrite:
            raise BadRequest(f"{self.destination} exists; choose another output or --overwrite")
        try:
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise BadRequest(
                f"{self.destination} cannot be written: {error.strerror} ({error.filename})"
            ) from error
        return self

    def take_over(self) -> None:
        """What an earlier run left is used from now on, and removed where this run fails."""
        self._keep = False

    def _take_lock(self) -> None:
        """Own the partial directory, empty unless it is kept."""
        while True:
            self.directory.mkdir(exist_ok=True)
            self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise BadRequest(
                    f"another run is writing {self.destination}; wait for it, or choose another "
                    "output"
                ) from None
            if self._is_still_there():
                break
            os.close(self._lock)
        for entry in [] if self._keep else self.directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _is_still_there(self) -> bool:
        """Whether the locked directory is the one that the name stands for now."""
        try:
            return os.path.samestat(os.fstat(self._lock), self.directory.stat())
        except FileNotFoundError:
            return False

    def commit(self) -> None:
        """Flush every directory and put the whole in its place."""
        for path, _, _ in os.walk(self.directory, topdown=False):
            sync_directory(Path(path))
        if os.path.lexists(self.destination):
            if not self._overwrite:
                raise BadRequest(f"{self.destination} appeared while it was being written")
            _exchange(self.directory, self.destination)
            sync_directory(self.destination.parent)
            _remove(self.directory)
        else:
            self.directory.rename(self.destination)
        sync_directory(self.destination.parent)
        self._committed = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if not (self._committed or self._keep or interrupted):
            shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _exchange(first: Path, second: Path) -> None:
    """Swap two names in one step; where the file system cannot, in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if done == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(second))
    aside = second.with_name(second.name + ".replaced")
    second.rename(aside)
    first.rename(second)
    aside.rename(first)
