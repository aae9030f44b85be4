"""Regular files only: every file of a checkpoint is opened here.

Opening a FIFO waits for a writer that may never come, and a device such as /dev/zero never ends.
Neither is part of a checkpoint, so both are refused by their type before they are opened: opening a
device can itself have effects.

A file next to a checkpoint may be a symbolic link: the Hub's cache consists of links, and people
link tokenizers. But the author of the checkpoint chose the targets of its links, and an output may
be published: with `tokenizer.json -> /home/ada/.ssh/id_ed25519`, a private key would get into it.
So a link is followed into an output only

- inside its own directory;
- to a blob of the Hub's cache: `models--gpt2/snapshots/1f/vocab.json -> ../../blobs/9c`;
- to a file of the same name, if its path has no hidden directory and models usually give this name
  to such a file (`chosen_name=False`): `vocab.json -> /models/vocab.json`.

Standard library only: the training process imports this module in the job's Python environment,
which may lack the other dependencies of zerotools.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
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
    """Return all bytes of a small file that the user named, such as a file of rules.

    Raises:
        BadRequest: the file is missing or cannot be read.
        BadFile: the file is not a regular file, or is too large.
    """
    try:
        return read_regular(path, LARGEST_GIVEN, is_source=False)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None


def check_regular(path: Path) -> None:
    """Raise an error if `path` is not a regular file, without opening it. Raises the errors of
    `open_regular`.
    """
    with named_if_gone(path):
        status = path.stat()
    _check(path, status)


def refused_link_target(path: Path, *, chosen_name: bool) -> Path | None:
    """Return the target of the link `path` if it must not be followed; None if the file may be
    copied.

    `chosen_name` is True if the author of the checkpoint chose the name of the file, such as
    `id_ed25519`. Then a link to a file of the same name in another directory is not followed.
    """
    if not path.is_symlink():
        return None
    target = path.resolve()
    if target.is_relative_to(path.parent.resolve()) or _is_blob(target):
        return None
    hidden = any(part.startswith(".") for part in target.parts)
    return target if chosen_name or hidden or target.name != path.name else None


def _is_blob(target: Path) -> bool:
    """Return whether the path is a blob of a model in the cache of the Hub."""
    places = target.parents
    return len(places) > 2 and places[0].name == "blobs" and places[1].name.startswith("models--")


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise BadFile(f"{path} is {kind} and not a regular file; put the file itself there")
