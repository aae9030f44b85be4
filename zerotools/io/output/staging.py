"""A directory in which an output is made: the output is complete, or does not exist.

Everything is written below `<destination>.partial`, flushed to the disk, and renamed when it is
complete. The partial directory is locked while it is written, so that two runs never share one.
Other users cannot open it until it is complete. A killed or interrupted run leaves only that
directory, and the next run resumes or clears it. A run that fails removes the directory, because a
resumed run would fail again, and because the disk may be full.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import OwnDirectory
from zerotools.io.files.open_files import sync_directory
from zerotools.io.output.journal import NAME as LEDGER
from zerotools.io.output.output_marker import remove_output

PROBE = ".zerotools-probe"
"""A file in a staging directory during the test whether the output can be replaced."""


def partial_of(destination: Path) -> Path:
    """Return the path of the staging directory of the output `destination`."""
    whole = destination.absolute()
    return whole.with_name(whole.name + ".partial")


class Staging:
    """The staging directory of an output. Use it as a context manager, and call `commit` inside the
    context.
    """

    def __init__(
        self,
        destination: Path,
        *,
        check_replaced: Callable[[Path], None] | None = None,
        check_left: Callable[[Path], None] = lambda _: None,
        keep: bool = False,
        shared: bool = False,
        rename: Callable[[Path, Path], object] = os.rename,
        exchange: Callable[[Path, Path], None] | None = None,
    ) -> None:
        """Prepare an output in `destination`, which must not exist, or must be an empty directory.
        Entering the context checks this, and makes and locks the staging directory.

        Args:
            check_replaced: if given, an existing destination is replaced as a whole if
                `check_replaced(destination)` raises no error.
            check_left: called with the staging directory before the files of an earlier run in it
                are removed.
            keep: the files of an earlier run stay in the directory, also after a failure, until
                `adopt_files` confirms that they belong to this output.
            shared: other runs with `shared` write to the same directory. No single run takes the
                directory over, and it always contains a `LEDGER`.
            rename, exchange: functions of the system, except in tests.

        Entering the context raises:
            BadRequest: the destination exists, its parent is not a directory or is not writable,
                another run is writing it, or its file system cannot replace it.
        """
        self.destination = destination.absolute()
        self.directory = partial_of(self.destination)
        self._check_replaced = check_replaced
        self._check_left = check_left
        self._rename = rename
        self._exchange = exchange or _exchange
        self._keep = keep or shared
        self._shared = shared
        self._committed = False

    def __enter__(self) -> Staging:
        if self._destination_exists():
            if self._check_replaced is None:
                raise BadRequest(
                    f"{self.destination} exists; choose another output, or pass --overwrite"
                )
            self._check_replaced(self.destination)
        try:
            _make_durably(self.destination.parent)
            self._acquire_lock()
        except OSError as error:
            raise BadRequest(
                f"{self.destination} cannot be written: {error.filename}: {error.strerror}"
            ) from error
        try:
            self._probe()
        except BaseException as error:  # released, and raised again
            self.__exit__(type(error), error, None)
            raise
        return self

    def _destination_exists(self) -> bool:
        """Return whether the destination exists. An empty directory does not count."""
        path = self.destination
        if not os.path.lexists(path):
            return False
        return path.is_symlink() or not path.is_dir() or any(path.iterdir())

    def _probe(self) -> None:
        """Raise an error now if the destination cannot be renamed at the end. An empty destination
        is not tested, because it is replaced without being renamed.
        """
        if os.path.ismount(self.destination):
            raise BadRequest(
                f"{self.destination} is a mount point, which cannot be replaced; name a directory "
                "inside it"
            )
        if not self._destination_exists():
            return
        probe = self.directory / PROBE
        probe.touch()
        try:
            why = why_fixed(self.destination, self.directory, self._rename)
        except NotImplementedError:
            raise BadRequest(
                f"{self.directory} is on a file system where a rename can replace a directory that "
                "is not empty, so the output could destroy data; choose another output"
            ) from None
        finally:
            probe.unlink(missing_ok=True)
        if why is not None:
            raise BadRequest(f"{self.destination} cannot be replaced: {why}; choose another output")

    def is_there(self) -> bool:
        """Return whether the staging directory is still at its path. If not, another run has
        renamed it to the output.
        """
        return self._own.is_at(self.directory)

    def discard(self) -> None:
        """Remove the staging directory, because nothing will be made in it. If another run has
        begun to use the directory, it is kept.
        """
        with suppress(OSError):
            if not (self.directory / LEDGER).stat().st_size:
                (self.directory / LEDGER).unlink()
                self.directory.rmdir()

    def adopt_files(self) -> None:
        """Use the files of an earlier run as files of this run, and remove them if this run
        fails.
        """
        self._keep = False

    def _acquire_lock(self) -> None:
        try:
            self._own = OwnDirectory(self.directory, shared=self._shared)
        except BlockingIOError:
            raise BadRequest(
                f"another run is writing {self.destination}; wait for it, or choose another output"
            ) from None
        try:
            self._clear()
            if self._shared:
                (self.directory / LEDGER).touch()
        except BaseException:  # released, and raised again
            self._own.close()
            raise

    def _clear(self) -> None:
        if any(self.directory.iterdir()):
            self._check_left(self.directory)
        for entry in [] if self._keep else self.directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def commit(self) -> None:
        """Flush every directory to the disk, and rename the staging directory to the
        destination.
        """
        for path, _, _ in os.walk(self.directory, topdown=False):
            sync_directory(Path(path))
        self._check_own(self.directory)
        self._own.open_up()
        if self._destination_exists():
            if self._check_replaced is None:
                raise BadRequest(
                    f"{self.destination} was created by another program during this run; choose "
                    "another output"
                )
            self._replace(self._check_replaced)
        else:
            self.directory.rename(self.destination)
            self._check_own(self.destination)
        sync_directory(self.destination.parent)
        self._committed = True

    def _check_own(self, path: Path) -> None:
        if not self._own.is_at(path):
            raise BadRequest(
                f"{path} was replaced after it was written, so this output cannot be trusted; see "
                "who writes there, and choose another output"
            )

    def _replace(self, check: Callable[[Path], None]) -> None:
        """Exchange the new output and the existing output, and remove the old one. `check` raises
        an error if the existing output must not be replaced.
        """
        check(self.destination)
        self._own.copy_access_from(self.destination.stat())
        self._exchange(self.directory, self.destination)
        try:  # no program can add files under the old path any more
            check(self.directory)
        except BaseException:  # undone, and raised again: __exit__ removes this name
            self._exchange(self.directory, self.destination)
            raise
        sync_directory(self.destination.parent)
        remove_output(self.directory)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        keeps = self._committed or self._keep or interrupted
        if not keeps and self._own.is_at(self.directory):
            shutil.rmtree(self.directory, ignore_errors=True)
        self._own.close()


def _make_durably(path: Path) -> None:
    """Make a directory and its missing parents, and flush the changed directories to the disk."""
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)
    path.mkdir(exist_ok=True)  # if a link or a file is there, the system reports it


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.replaced{more}") for more in ("", *range(2, 10_000)))
    return next(name for name in names if not os.path.lexists(name))


def _exchange(first: Path, second: Path) -> None:
    """Exchange two names in one step, or in two steps if the file system cannot exchange names."""
    try:
        exchange_names(first, second)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        in_two_steps(first, second)


def in_two_steps(first: Path, second: Path) -> None:
    """Exchange two names by renames. If the process is killed between them, `second` remains under
    a temporary name.
    """
    aside = _free_name(second)
    second.rename(aside)
    first.rename(second)
    aside.rename(first)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
"""The error numbers of file systems that cannot exchange names: NFS, some of FUSE."""


def exchange_names(first: Path, second: Path) -> None:
    """Exchange two names, which must both exist on one file system: each then has the contents of
    the other.

    Raises:
        OSError: the exchange failed, and nothing has changed. An error number in `UNSUPPORTED`
            means that the file system cannot exchange names.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library without it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(second)) from None
    done = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if done:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(second))


def why_fixed(
    path: Path, occupied: Path, rename: Callable[[Path, Path], object] = os.rename
) -> str | None:
    """Return the reason why the directory `path` cannot be renamed, or None if renaming is
    possible.

    The test tries to rename the directory to `occupied`, a directory that is not empty, so nothing
    changes. Two kinds of directories cannot be renamed: a directory in a lower layer of overlayfs,
    and a directory that this user may not remove. `rename` is os.rename, except in tests.

    Raises:
        NotImplementedError: the file system would replace a directory that is not empty.
    """
    try:
        rename(path, occupied)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        if error.errno == errno.EXDEV:
            return (
                "it is in a lower layer of an overlay file system (the image of a container), "
                "which cannot rename directories"
            )
        return error.strerror or str(error)
    raise NotImplementedError(f"{occupied} was replaced")
