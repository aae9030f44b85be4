"""Writes small files atomically and durably: after a power loss a file is complete, or it does
not exist.

A `ReservedRecord` has disk space that is reserved in advance, so that the record can be
written when the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.rank_log import log_line

LARGEST = 64 << 20
LARGEST_RECORD = 4 << 20
"""Largest record, in bytes, that is read from a run directory. A job can write there, too."""


DEEPEST = 12
"""Largest number of nested levels of lists and dicts in a report of a rank."""


def is_shallow(value: object, left: int = DEEPEST) -> bool:
    """Return whether lists and dicts in the JSON value are nested at most `left` levels deep."""
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return left > 0 and all(is_shallow(each, left - 1) for each in inner)


def write_text(path: Path, text: str) -> None:
    """Write `path` atomically and durably, with mode 0600: temporary file, fsync, rename, fsync.

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
    """Write `tree` as JSON to the file `path`, atomically and durably (`write_text`)."""
    write_text(path, json.dumps(tree) + "\n")


def open_regular(path: Path) -> int:
    """Open the regular file `path` for reading, and return its file descriptor.

    Other kinds of files are refused: opening a pipe would wait for a writer forever, and a
    link may lead to a file system that does not respond.

    Raises ValueError if `path` is not a regular file. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        # If a directory above cannot be reached, this says nothing about the file.
        if error.errno == errno.ELOOP and path.is_symlink():
            raise ValueError(f"{path.name} is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path.name} is not a regular file")
    return fd


def read_json(path: Path, most_bytes: int = LARGEST) -> dict[str, Any] | None:
    """Return the JSON object in the file `path`; None if the file does not exist.

    Raises OSError. Raises ValueError if the file is larger than the limit or contains no object.
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
    """Flush the directory's entries to the disk (fsync)."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_entries(fd)
    finally:
        os.close(fd)


def _sync_entries(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system cannot flush a directory
            raise


ROOM_BYTES = 64 * 1024
RANK_BYTES = 256
LONGEST_CAUSE = 2000
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0


REQUEST_BYTES = 4096
"""Disk space in bytes that is reserved for a stop request, and again for the stop file that the
ranks read.
"""


def placeholder_of(path: Path) -> Path:
    """Return the path of the placeholder file that reserves disk space for the record `path`."""
    return path.with_name(f".{path.name}.room")


def reserve_space(path: Path, ranks: int, size: int = ROOM_BYTES) -> None:
    """Reserve disk space for the record `path`: `size` bytes, and RANK_BYTES more for each of
    `ranks` ranks.

    A second call has no effect. Raises OSError.
    """
    os.close(_open_reserved(path, size + ranks * RANK_BYTES))


def _open_reserved(path: Path, size: int) -> int:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(placeholder_of(path), flags, 0o600)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
    except BaseException:  # undone, and raised again
        os.close(fd)
        raise
    return fd


def write_reserved(path: Path, text: str) -> None:
    """Write `text` (at most REQUEST_BYTES) into the reserved file `path`. Raises OSError."""
    record = ReservedRecord(path, 0, REQUEST_BYTES)
    try:
        record.try_put(text.encode(errors="backslashreplace"))
    finally:
        record.close()


class ReservedRecord:
    """A JSON record that can be written once, into disk space that was reserved before."""

    def __init__(self, path: Path, ranks: int, size: int = ROOM_BYTES) -> None:
        """Open the reserved disk space of the record `path` for `ranks` ranks, and reserve it if
        necessary.

        `size` has the same meaning as in `reserve_space`. Raises OSError if the disk is full.
        """
        self.path = path
        self._room_bytes = size + ranks * RANK_BYTES
        self._fd = _open_reserved(path, self._room_bytes)
        try:
            self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise

    def write(self, record: Mapping[str, Any], sleep: Callable[[float], None] = time.sleep) -> bool:
        """Write `record` to its file and retry until it is on the disk.

        Return False if the directory of the file was removed, so that the record cannot be
        written.
        """
        for wait in _waits():
            try:
                self.try_write(record)
            except FileNotFoundError:
                log_line(f"{self.path}: the run directory was removed")
                return False
            except OSError as error:
                log_line(f"{self.path}: {error}; next try in {wait:g} s")
                sleep(wait)
            else:
                return True
        raise AssertionError

    def try_write(self, record: Mapping[str, Any]) -> None:
        """Write `record` once, without a retry, and flush it to the disk.

        Raises OSError; FileNotFoundError if the directory of the file no longer exists.
        """
        self.try_put(_fitting(record, self._room_bytes))

    def try_put(self, data: bytes) -> None:
        """Write the bytes `data` as the record once, without a retry, and flush them to the disk.

        Raises OSError; FileNotFoundError if the directory of the file no longer exists.
        """
        try:
            _write_all(self._fd, data)
            os.ftruncate(self._fd, len(data))
            os.fsync(self._fd)
            os.rename(placeholder_of(self.path), self.path)  # noqa: PTH104  # as its room was opened
        except FileNotFoundError:
            write_text(self.path, data.decode())  # only the reserved file was removed
            return
        _sync_entries(self._directory)

    def drop(self) -> None:
        """Free the reserved disk space without writing the record."""
        self.close()
        placeholder_of(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file descriptors. The disk space stays reserved."""
        os.close(self._fd)
        os.close(self._directory)


def _write_all(fd: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        written = os.pwrite(fd, data[done:], done)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        done += written


def _waits() -> Iterator[float]:
    wait = FIRST_WAIT
    while True:
        yield wait
        wait = min(2 * wait, LONGEST_WAIT)


def _fitting(record: Mapping[str, Any], size: int) -> bytes:
    """Return `record` as JSON text of at most `size` bytes. Optional keys are dropped if the
    text would be longer.
    """
    short = {**record, "cause": str(record.get("cause"))[:LONGEST_CAUSE]}
    silent = {**short, **dict.fromkeys(short.keys() & {"last_lines", "last_error"})}
    least = {**silent, **dict.fromkeys(silent.keys() & {"progress", "evaluation"})}
    for each in ({**record}, short, silent, least):
        data = json.dumps(each).encode() + b"\n"
        if len(data) <= size:
            return data
    return data
