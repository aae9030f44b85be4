"""Regular files only: every file of a checkpoint is opened here.

Opening a FIFO waits for a writer that may never come, and a device such as /dev/zero never ends.
Neither is part of a checkpoint, so both are refused by their type before they are opened: opening a
device can itself have effects.

Standard library only: the training process imports this module in the job's Python environment,
which may lack the other dependencies of zerotools.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.open_source import LocalSource, OpenablePath, OpenSource
from zerotools.io.files.source_stamps import named_if_gone, record_source

LARGEST_GIVEN = 2**22
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path, flags: int = os.O_RDONLY, *, is_source: bool = True) -> int:
    """Open the regular file at `path`, and return its descriptor. Symbolic links are followed.

    The file is recorded as a source, which must not change any more. With `is_source=False` it is
    not recorded: the file `latest`, for example, is rewritten by the next save.

    Raises:
        OSError: the file is missing or cannot be opened.
        BadFile: the file is not a regular file, or has changed since it was first read.
    """
    check_regular(path)
    # O_NONBLOCK: by now the path may have become a FIFO.
    with named_if_gone(path):
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        _check(path, status)
        if is_source and flags == os.O_RDONLY:
            record_source(path, status)
        os.set_blocking(descriptor, True)
    except BaseException:  # closed, and raised again
        os.close(descriptor)
        raise
    return descriptor


def open_source(path: Path, *, is_source: bool = True) -> OpenSource:
    """Open a file for reading as `open_regular` does. Its path may also be an `OpenablePath`."""
    if not isinstance(path, OpenablePath):
        return LocalSource(open_regular(path, is_source=is_source))
    check_regular(path)
    with named_if_gone(path):
        source = path.open_source()
    if is_source:
        record_source(path, source.status())
    return source


@contextmanager
def source_file(path: Path, *, is_source: bool = True) -> Iterator[OpenSource]:
    """Open a file as `open_source` does, and close it at the end of the context."""
    source = open_source(path, is_source=is_source)
    try:
        yield source
    finally:
        source.close()


@contextmanager
def regular_file(path: Path, *, is_source: bool = True) -> Iterator[int]:
    """Open a file as `open_regular` does, and close it at the end of the context."""
    descriptor = open_regular(path, is_source=is_source)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int, *, is_source: bool = True) -> bytes:
    """Return all bytes of the regular file at `path`, which may have at most `most` bytes.

    Raises:
        OSError: the file is missing or cannot be read.
        BadFile: the file is not a regular file, or is larger.
    """
    with source_file(path, is_source=is_source) as source:
        size = source.status().st_size
        if size > most:
            raise BadFile(
                f"{path} has {size} bytes, but a file of its kind may have at most {most}; check "
                "that "
                "it is the right file"
            )
        with source.stream() as stream:
            return stream.read(most)


def read_user_file(path: Path) -> bytes:
    """Return all bytes of a small file that the user named, such as a file of rules. Raises the
    errors of `read_regular`.
    """
    return read_regular(path, LARGEST_GIVEN, is_source=False)


def check_regular(path: Path) -> None:
    """Raise an error if `path` is not a regular file, without opening it. Raises the errors of
    `open_regular`.
    """
    with named_if_gone(path):
        status = path.stat()
    _check(path, status)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise BadFile(f"{path} is {kind} and not a regular file; put the file itself there")
