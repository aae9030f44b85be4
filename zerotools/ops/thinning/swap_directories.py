"""The directory next to a checkpoint for its thinned copy, and the exchange of the two.

    runs/global_step10                            the checkpoint
    runs/.global_step10.zerotools-thin/           locked while a run works in it
        global_step10                             the copy; after the exchange, the old checkpoint

Whenever a run is killed, `runs/global_step10` is a complete checkpoint: unchanged before the
exchange, thinned after it. The directory next to it then holds an unfinished copy, or the old
checkpoint. The next run removes them. The name of the directory begins with a dot, and the copy is
one level below it, so that tools that search for checkpoints do not find the copy. The new copy is
flushed to the disk before the exchange, and the exchange is flushed before the old checkpoint is
removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.files.exclusive_directory import OwnDirectory
from zerotools.io.files.open_files import sync_directory
from zerotools.io.output.staging import UNSUPPORTED, exchange_names, why_fixed
from zerotools.runs.thinning_record import is_workspace, workspace_of

Exchange = Callable[[Path, Path], None]
_PROBES = (".probe-1", ".probe-2")


class Workspace:
    """The locked directory next to a checkpoint for its thinned copy.

    A context manager. `cleared` is the size in bytes of removed files of an earlier run.
    """

    def __init__(self, subject: Path, exchange: Exchange = exchange_names) -> None:
        """Prepare the directory for `subject`, the checkpoint's directory or file.

        `exchange` is the system call that exchanges two names.
        """
        self._subject = subject
        self._path = workspace_of(subject)
        self._exchange = exchange
        self.cleared = 0
        self.links = False
        """True if the file system supports hard links."""
        self.exchanged = False

    @property
    def copy(self) -> Path:
        """The path of the new copy."""
        return self._path / self._subject.name

    def __enter__(self) -> Workspace:
        try:
            self._own = OwnDirectory(self._path)
        except BlockingIOError:
            raise BadRequest(f"another run is thinning {self._subject}; wait for it") from None
        except OSError as error:
            raise BadRequest(
                f"{self._subject} cannot be thinned: {self._path} cannot be made: {error.strerror}"
            ) from None
        try:
            self.cleared = size_left(self._subject)
            for entry in self._path.iterdir():
                _remove(entry)
            self._probe()
        except BaseException as error:  # released, and raised again
            self.__exit__(type(error), error, None)
            raise
        return self

    def _probe(self) -> None:
        """Check that the exchange is possible, before anything is written.

        Raises:
            Unsupported: the file system cannot exchange two names in one step.
            BadRequest: the directory cannot be renamed.
        """
        first, second = (self._path / name for name in _PROBES)
        first.mkdir()
        second.mkdir()
        try:
            self._exchange(first, second)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            raise Unsupported(
                f"{self._subject} is on a file system that cannot exchange two names in one step "
                "(such as NFS), so an interruption could lose it; nothing was changed: copy it "
                "to a local disk, thin it there, and copy it back"
            ) from None
        why = self._why_fixed() if self._subject.is_dir() else None
        if why is not None:
            raise BadRequest(f"{self._subject} cannot be exchanged: {why}; thin a copy of it")
        self.links = self._can_link(first / "a", first / "b")
        for probe in (first, second):
            shutil.rmtree(probe)

    def _why_fixed(self) -> str | None:
        # A directory that comes under another one has its entry `..` written.
        if not os.access(self._subject, os.W_OK):
            raise BadRequest(
                f"{self._subject} is a directory without write permission for you, so nothing was "
                "changed: add the permission (chmod u+w) to thin it"
            )
        return why_fixed(self._subject, self._path)

    @staticmethod
    def _can_link(first: Path, second: Path) -> bool:
        first.touch()
        try:
            second.hardlink_to(first)
        except OSError:
            return False
        return True

    def commit(self, check: Callable[[Path], None]) -> None:
        """Flush the directories of the copy, exchange the copy with the checkpoint, and remove the
        old checkpoint.

        `check(path)` raises an error if the checkpoint, now at `path`, has changed. It is called
        before and after the exchange. An error after the exchange undoes the exchange.

        Raises:
            BadFile: the checkpoint has changed. The exchange is not made, or is undone.
            OSError: the exchange fails, and the checkpoint is unchanged; or the exchange was made,
                but the old checkpoint cannot be removed.
        """
        if self.copy.is_dir():
            for folder, _, _ in os.walk(self.copy, topdown=False):
                sync_directory(Path(folder))
        sync_directory(self._path)
        check(self._subject)
        if not self._own.is_at(self._path):
            raise BadFile(f"{self._path} was removed or replaced, so nothing was changed")
        self._exchange(self.copy, self._subject)
        try:  # nothing can be put into it under its name any more
            check(self.copy)
        except BaseException:  # undone, and raised again
            self._exchange(self.copy, self._subject)
            raise
        self.exchanged = True
        sync_directory(self._subject.parent)
        sync_directory(self._path)
        _remove(self.copy)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            if self._own.is_at(self._path):
                _remove(self._path)
        self._own.close()


def clear_left(directory: Path) -> int:
    """Remove the files of interrupted runs in `directory`, and return the number of bytes that
    became free. Files of a run in progress stay, and so do files that cannot be removed."""
    cleared = 0
    with suppress(OSError):
        for path in [each for each in directory.iterdir() if is_workspace(each.name)]:
            cleared += _clear(path)
    return cleared


def _clear(path: Path) -> int:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = _size_of(path)
        _remove(path)
    except OSError:
        return 0
    finally:
        os.close(lock)
    return size


def _open_up(path: Path) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        with suppress(OSError):  # another user's; to remove it may be allowed all the same
            path.chmod(stat.S_IMODE(mode) | 0o700)


def size_left(subject: Path) -> int:
    """Return the size in bytes of the files that an interrupted run left next to a checkpoint.
    Files with several hard links are not counted."""
    return _size_of(workspace_of(subject))


def _size_of(path: Path) -> int:
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            status = Path(folder, name).lstat()
            found += status.st_size if status.st_nlink == 1 else 0
    return found


def has_leftovers(subject: Path) -> bool:
    """Return whether an interrupted run left files next to a checkpoint."""
    return os.path.lexists(workspace_of(subject))


def _remove(path: Path) -> None:
    """Remove a path and everything below it, including directories that are write-protected."""
    if path.is_dir() and not path.is_symlink():
        _open_up(path)
        for folder, names, _ in os.walk(path):
            for name in names:
                _open_up(Path(folder, name))
        shutil.rmtree(path)
    else:
        path.unlink()
