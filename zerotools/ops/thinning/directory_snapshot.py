"""List the entries of a checkpoint's directory, to check that none is lost or changes."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.files.source_stamps import Sources


@dataclass(frozen=True)
class Entries:
    """All entries of the directory `root` with their status, keyed by name relative to `root`.

    The key "" stands for `root` itself, which is the only entry if `root` is a file.
    """

    root: Path
    status: Mapping[str, os.stat_result]

    @classmethod
    def of_any(cls, root: Path) -> Entries:
        """Return the entries of `root` without the checks of `entries_of`. Raises OSError."""
        return cls(root, _every(root))

    def directories(self) -> list[str]:
        """Return the directories below the root, each after its parent."""
        found = (name for name, each in self.status.items() if stat.S_ISDIR(each.st_mode))
        return sorted(name for name in found if name)

    def files(self) -> list[str]:
        """Return the names of files and symbolic links."""
        return sorted(n for n, each in self.status.items() if not stat.S_ISDIR(each.st_mode))

    def is_file(self, name: str) -> bool:
        return name in self.status and stat.S_ISREG(self.status[name].st_mode)

    def size_of(self, name: str) -> int:
        """Return the size of the file `name` in bytes; 0 for a symbolic link."""
        return self.status[name].st_size if self.is_file(name) else 0

    def freed_by(self, name: str) -> int:
        """Return the number of bytes that become free if the file `name` is removed: 0 if it has
        other hard links."""
        return self.size_of(name) if self.status[name].st_nlink == 1 else 0

    def newest(self) -> float:
        """Return the modification time of the newest file, in seconds since 1970."""
        files = [self.status[name] for name in self.files()] or [*self.status.values()]
        return max(status.st_mtime_ns for status in files) / 1e9

    def check_unchanged(self, root: Path) -> None:
        """Check that the entries are unchanged. `root` is the directory's current path.

        Raises:
            BadFile: a file was written, added or removed.
        """
        try:
            found = _every(root)
        except FileNotFoundError as error:
            raise BadFile(_changed(Path(error.filename or root), "it is gone")) from None
        for name in sorted(self.status.keys() | found.keys()):
            before, now = self.status.get(name), found.get(name)
            if before is None or now is None:
                raise BadFile(_changed(root / name, "it is gone" if now is None else "it is new"))
            if _stamp(before) != _stamp(now):
                raise BadFile(_changed(root / name, "it was written to"))

    def note_in(self, sources: Sources) -> None:
        """Add every file, with or without tensors, to `sources`, the files that must not change.

        Raises:
            BadFile: a file has changed since it was read.
        """
        for name in filter(self.is_file, self.status):
            sources.record(self.root / name, self.status[name])

    def check_same(self, name: str, path: Path) -> None:
        """Check that `path`, the new path of the entry `name`, is still the listed file.

        Raises:
            BadFile: another file has replaced the listed file.
        """
        if not os.path.samestat(self.status[name], path.lstat()):
            raise BadFile(_changed(self.root / name, "another file has replaced it"))

    def check_unwritten(self) -> None:
        """Raise an error if a process has a file of the directory open for writing.

        Raises:
            BadRequest: a file is open for writing. The message names the file.
        """
        for name in self.files():
            path = self.root / name if name else self.root
            try:
                busy = self.is_file(name) and _is_open_for_writing(path)
            except OSError as error:
                raise BadFile(f"{path} cannot be read: {error.strerror}") from None
            if busy:
                raise BadRequest(
                    f"{path} is open for writing: a program is saving there; wait until it is done"
                )


def _is_open_for_writing(path: Path) -> bool:
    """Return whether a process has the regular file at `path` open for writing. Return False if the
    system cannot find out.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        # If a process opens the file while we hold the lease, the kernel sends us a signal. SIGIO,
        # the default, would end this process, so another signal is chosen.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(descriptor)


def entries_of(root: Path) -> Entries:
    """Return the entries of the directory `root`, or the file `root`.

    Raises:
        BadRequest: `root` is a symbolic link or a mount point.
        Unsupported: an entry cannot be put into a new directory next to `root`, because it is on
            another file system or is neither a file nor a directory.
    """
    if root.is_symlink():
        raise BadRequest(
            f"{root} is a symbolic link; name its target, {root.resolve()}, so that it is clear "
            "which checkpoint is thinned"
        )
    if os.path.ismount(root):
        raise BadRequest(f"{root} is a mount point, which cannot be exchanged; thin a copy of it")
    try:
        found = _every(root)
    except OSError as error:
        raise BadRequest(f"{error.filename} cannot be read: {error.strerror}") from None
    device = found[""].st_dev
    for name, status in found.items():
        _check_kind(root, name, status)
        if status.st_dev != device:
            raise Unsupported(
                f"{root / name} and {root} are on two file systems; move the former to the file "
                "system of the latter"
            )
    return Entries(root, found)


def _check_kind(root: Path, name: str, status: os.stat_result) -> None:
    path, mode = root / name, status.st_mode
    if stat.S_ISLNK(mode):
        target = path.readlink()
        leads_out = not target.is_absolute() and not _stays_inside(root, path.parent / target)
        if leads_out:
            raise Unsupported(
                f"{path} is a link to {target}, outside of the checkpoint: put the file itself "
                "there, or make the link absolute"
            )
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise Unsupported(f"{path} is neither a file nor a directory; move it elsewhere")


def _stays_inside(root: Path, path: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(root)


def _every(root: Path) -> dict[str, os.stat_result]:
    found = {"": root.lstat()}
    if stat.S_ISDIR(found[""].st_mode):
        found |= dict(_below(root, ""))
    return found


def _below(directory: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(directory):
        name = prefix + entry.name
        status = entry.stat(follow_symlinks=False)
        yield name, status
        if entry.is_dir(follow_symlinks=False):
            yield from _below(directory / entry.name, f"{name}/")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return the values that show whether an entry has changed. For a directory the modification
    time is left out, because its entries are compared too. The change time is left out, because a
    new hard link to the file changes it."""
    if stat.S_ISDIR(status.st_mode):
        return (stat.S_IFMT(status.st_mode), status.st_ino)
    return (stat.S_IFMT(status.st_mode), status.st_ino, status.st_size, status.st_mtime_ns)


def _changed(path: Path, what: str) -> str:
    return (
        f"{path} changed while its new copy was made: {what}; the checkpoint was not thinned. Wait "
        "until no program writes there, and run the command again"
    )
