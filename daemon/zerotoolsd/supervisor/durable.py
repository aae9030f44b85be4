"""Small files that are there whole, or not at all, also after a power loss."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
LARGEST_RECORD = 4 << 20
"""Bytes of a record of an attempt: a job can write into its run directory too."""


DEEPEST = 12
"""The limit of nested objects in reports of ranks: callers write and read them with a deeper
stack."""


def is_shallow(value: object, left: int = DEEPEST) -> bool:
    """Return whether lists and objects in `value` are nested at most `left` levels deep."""
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return left > 0 and all(is_shallow(each, left - 1) for each in inner)


def write_text(path: Path, text: str) -> None:
    """Write a temporary file with mode 0600, fsync it, rename it to `path`, fsync the directory.

    Characters that cannot be encoded are written as escapes.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}.new")
    staged.unlink(missing_ok=True)  # a job may have put a link or a pipe there
    fd = os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_directory(path.parent)


def write_json(path: Path, tree: Any) -> None:
    """Write one JSON document with `write_text`."""
    write_text(path, json.dumps(tree) + "\n")


def open_regular(path: Path) -> int:
    """Open a regular file and return its descriptor.

    Opening a pipe would wait for a writer forever, and a link may lead to a file system that does
    not respond.

    Raises ValueError if it is anything but a regular file. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        # Of a directory above that cannot be reached nothing follows for the file.
        if error.errno == errno.ELOOP and path.is_symlink():
            raise ValueError(f"{path.name} is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path.name} is not a regular file")
    return fd


def read_json(path: Path, most_bytes: int = LARGEST) -> dict[str, Any] | None:
    """Return the object in `path`; None if the file does not exist.

    Raises ValueError if it is not an object, or is too large.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise ValueError(f"it is larger than {most_bytes >> 20} MiB")
        tree = json.loads(data)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path.name} does not hold a JSON object")
    return tree


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
