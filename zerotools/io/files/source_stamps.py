"""The files that an output is made from, each with a stamp (`Stamp`) that was taken before its
first read.

Another run may save over a checkpoint while it is read. So `open_regular` records every file's
stamp before its first byte is read, and compares every later opening with it. All files are checked
again before an output gets its name. `written_apart` compares write times: a file that was written
long before or after the other files may be from another save.

Standard library only: the training process imports this module in the job's Python environment,
which may lack the other dependencies of zerotools.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from zerotools.core.checkpoint import Stamp
from zerotools.core.errors import BadFile
from zerotools.io.files.open_source import RemotePath

# File systems that invent inode numbers while they are mounted: the number of a file may change.
_CHANGING_INODES = ("fuse", "cifs", "smb", "9p", "vfat", "exfat")
_MOUNTS = Path("/proc/self/mountinfo")


class Sources:
    """The stamps of the files that were read, by absolute path."""

    def __init__(self, stamps: Mapping[Path, Stamp] | None = None) -> None:
        self.stamps: dict[Path, Stamp] = dict(stamps or {})

    def record(self, path: Path, status: os.stat_result) -> None:
        """Record the stamp of the file `path`, which has the status `status`. If a stamp is
        recorded already, compare it.

        Raises:
            BadFile: the file has changed.
        """
        stamp = stamp_of(status)
        first = self.stamps.setdefault(path.absolute(), stamp)
        if first != stamp:
            raise BadFile(_changed(path, _difference(first, stamp)))

    def changed(self) -> Iterator[tuple[Path, str]]:
        """Yield every recorded file that has changed, with a description of the change."""
        _forget_listings(self.stamps)
        for path, first in self.stamps.items():
            try:
                stamp = stamp_of(path.stat())
            except OSError as error:
                yield path, f"it is gone ({error.strerror})"
                continue
            if stamp != first:
                yield path, _difference(first, stamp)

    def check(self, paths: Iterable[Path] | None = None) -> None:
        """Check the files `paths` again, or by default every recorded file.

        Raises:
            BadFile: a file has changed since it was first read.
        """
        paths = list(self.stamps if paths is None else paths)
        _forget_listings(paths)
        for path in paths:
            try:
                status = path.stat()
            except OSError as error:
                raise BadFile(_changed(path, f"it is gone ({error.strerror})")) from None
            self.record(path, status)


def _forget_listings(paths: Iterable[Path]) -> None:
    """Drop the cached listings of the object stores that contain `paths`."""
    far = [path for path in paths if isinstance(path, RemotePath)]
    for parent in {path.parent: path for path in far}.values():
        parent.forget()
    several = [parent for parent, n in Counter(path.parent for path in far).items() if n > 1]
    for parent in several:  # one request for the directory instead of one for each file
        next(iter(parent.iterdir() if parent.is_dir() else ()), None)


_NOTED: ContextVar[tuple[Sources, ...]] = ContextVar("sources", default=())


@contextmanager
def recording_sources() -> Iterator[Sources]:
    """Record every file that is opened inside this context, nested contexts included."""
    sources = Sources()
    token = _NOTED.set((*_NOTED.get(), sources))
    try:
        yield sources
    finally:
        _NOTED.reset(token)


def record_source_path(path: Path) -> int:
    """Record a file that will be read later, and return its size in bytes.

    Raises:
        OSError: the file does not exist, and was not recorded before.
        BadFile: the file has changed since it was first read, or does not exist any more.
    """
    with named_if_gone(path):
        status = path.stat()
    record_source(path, status)
    return status.st_size


@contextmanager
def named_if_gone(path: Path) -> Iterator[None]:
    """Convert the error of a file that disappears while it is read to an error that names the file.

    Raises:
        BadFile: the file existed when it was first read, and does not exist any more.
    """
    try:
        yield
    except FileNotFoundError as error:
        if any(path.absolute() in sources.stamps for sources in _NOTED.get()):
            raise BadFile(_changed(path, f"it is gone ({error.strerror})")) from None
        raise


def record_source(path: Path, status: os.stat_result) -> None:
    """Record a file that is open and not read yet. Raises BadFile if the file has changed since an
    earlier record.
    """
    for sources in _NOTED.get():
        sources.record(path, status)


def record_open_source(path: Path, status: Callable[[], os.stat_result]) -> None:
    """Record a file that is already open, because it may have been opened outside of
    `recording_sources`.

    `status` returns the status of the file. It is called only inside `recording_sources`.
    """
    if _NOTED.get():
        record_source(path, status())


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the values of a file's status that change if the file is modified or replaced."""
    if not has_lasting_inodes(status.st_dev):
        return Stamp(status.st_size, status.st_mtime_ns)
    return Stamp(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)


@lru_cache
def has_lasting_inodes(device: int) -> bool:
    """Return whether a file keeps its inode number on the file system with the number `device`,
    according to mountinfo(5). Return True for an unknown file system.
    """
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    return lasting_inodes(lines, name)


def lasting_inodes(mounts: Iterable[str], device: str) -> bool:
    """Return the result of `has_lasting_inodes`, from the lines of mountinfo."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [device] and after.startswith(_CHANGING_INODES):
            return False
    return True


def _difference(first: Stamp, now: Stamp) -> str:
    if first.size != now.size:
        return f"it had {first.size} bytes and has {now.size}"
    if first.mtime_ns != now.mtime_ns:
        return f"it was last written at {_clock(first)} and now at {_clock(now)}"
    return "another file has replaced it"


def _clock(stamp: Stamp) -> str:
    seconds, rest = divmod(stamp.mtime_ns, 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest:09d}"


def _changed(path: Path, difference: str) -> str:
    return (
        f"{path} changed while it was read: {difference}; no output is kept. Wait until no "
        "program writes there, or take a finished checkpoint, and run the command again"
    )


_HOUR = 3600.0
_DAY = 24 * _HOUR
_SPREADS = 20
"""A file counts as part of another save if the time between it and the other files is more than
this many times the duration of their save.
"""


@dataclass(frozen=True)
class WrittenApart:
    """The `names` of files that were not written together with the other files of a checkpoint.
    `when` is a phrase that says how long before or after the other files they were written.
    """

    names: tuple[str, ...]
    when: str

    def sentence(self) -> str:
        """Return a sentence about these files."""
        more = f" and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        return (
            f"{', '.join(self.names[:3])}{more}: {self.when}, so they are from another save, "
            "unless all files were copied one by one"
        )


def written_apart(times: Mapping[str, float]) -> WrittenApart | None:
    """Return the files that were written long before or after most files; None if there are no such
    files.

    `times` maps each name to the time of the last change, in seconds since 1970; 0: unknown.
    """
    ordered = sorted((time, name) for name, time in times.items() if time > 0)
    if len(ordered) < 2:
        return None
    gap, at = max((b[0] - a[0], n) for n, (a, b) in enumerate(pairwise(ordered), 1))
    before, after = ordered[:at], ordered[at:]
    few, most = (before, after) if len(before) <= len(after) else (after, before)
    if gap <= max(_HOUR, _SPREADS * (most[-1][0] - most[0][0])):
        return None
    how = "before" if few is before else "after"
    long = f"{gap / _DAY:.1f} days" if gap > 2 * _DAY else f"{gap / _HOUR:.1f} hours"
    names = tuple(name for _, name in few)
    return WrittenApart(names, f"written {long} {how} the other files")
