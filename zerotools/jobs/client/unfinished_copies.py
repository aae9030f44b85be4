"""A copy that is being written, under a name of its own beside the file that it is to become.

Whoever writes one holds its lock, which the kernel gives up with the process. So what a killed one
has left is known for sure, whatever process has its number now, and the next copy that is written
to that directory removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"\..+\.[0-9]+\.copying")
_OF_SQLITE = ("-journal", "-wal", "-shm")


@contextmanager
def unfinished_copy(out: Path) -> Iterator[Path]:
    """A new file for what becomes `out`, for its owner alone; it is removed where it is still there
    in the end. Raises OSError."""
    remove_left_behind(out.parent)
    staged = out.with_name(f".{out.name}.{os.getpid()}.copying")
    descriptor = _made_and_locked(staged)
    try:
        yield staged
    finally:
        _remove(staged)
        os.close(descriptor)


def _made_and_locked(staged: Path) -> int:
    while True:
        descriptor = os.open(staged, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # without locks on that file system, nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another has removed it before it was locked


def remove_left_behind(directory: Path) -> list[Path]:
    """Remove the copies in `directory` that nobody writes any more. Raises OSError."""
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return [path for path in sorted(found) if _remove_unlocked(path)]


def _remove_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it is gone, or another's, or a link
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    except OSError:  # it is written to, or it is not ours to remove
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(staged: Path) -> None:
    for ending in ("", *_OF_SQLITE):
        staged.with_name(staged.name + ending).unlink(missing_ok=True)
