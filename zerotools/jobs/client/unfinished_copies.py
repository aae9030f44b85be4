"""A copy that is being written, under a temporary name next to its final file.

The writer holds its lock, which the kernel releases with the process. So a copy that a killed
writer left is identified for certain, even if its pid was reused, and the next copy to that
directory removes it.
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
    """Yield a new file for `out`, for its owner only; it is removed if it still exists at the end.
    Raises OSError."""
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
        with suppress(OSError):  # without locks, abandoned copies stay
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another has removed it before it was locked


def remove_left_behind(directory: Path) -> list[Path]:
    """Remove the abandoned copies in `directory`. Raises OSError."""
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
