"""A record with disk space that is reserved in advance, so it can be written on a full disk.

`exit.json` records how an attempt ended; without it a finished job would run again. So a file next
to it (`.exit.json.room`) holds blocks and an inode from the start, and descriptors of it and of its
directory stay open. The record is written into those blocks and flushed, and the file is renamed.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable import write_text
from zerotoolsd.supervisor.rank_log import say

ROOM_BYTES = 64 * 1024
RANK_BYTES = 256
LONGEST_CAUSE = 2000
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0


REQUEST_BYTES = 4096
"""Bytes of a request to an attempt, and of the stop file that its ranks read."""


def room_of(path: Path) -> Path:
    """Return the path of the file that reserves the space of the record `path`."""
    return path.with_name(f".{path.name}.room")


def reserve(path: Path, ranks: int, size: int = ROOM_BYTES) -> None:
    """Reserve the space of the record `path`, unless that was done before. Raises OSError.

    It is `size` bytes and a fixed number for each rank.
    """
    os.close(_open_room(path, size + ranks * RANK_BYTES))


def _open_room(path: Path, size: int) -> int:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(room_of(path), flags, 0o600)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
    except BaseException:  # undone, and raised again
        os.close(fd)
        raise
    return fd


def put(path: Path, text: str) -> None:
    """Write `text`, of at most REQUEST_BYTES, into the reserved space of `path`. Raises OSError."""
    record = ReservedRecord(path, 0, REQUEST_BYTES)
    try:
        record.try_put(text.encode(errors="backslashreplace"))
    finally:
        record.close()


class ReservedRecord:
    """The record `path`, which can be written once."""

    def __init__(self, path: Path, ranks: int, size: int = ROOM_BYTES) -> None:
        """Open the reserved space for so many ranks, with the `size` of `reserve`.

        Raises OSError if the disk is full.
        """
        self.path = path
        self._room_bytes = size + ranks * RANK_BYTES
        self._fd = _open_room(path, self._room_bytes)
        try:
            self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise

    def write(self, record: Mapping[str, Any], sleep: Callable[[float], None] = time.sleep) -> bool:
        """Make the record durable, however long that takes; False: its directory was removed."""
        for wait in _waits():
            try:
                self.try_write(record)
            except FileNotFoundError:
                say(f"{self.path}: the run directory was removed")
                return False
            except OSError as error:
                say(f"{self.path}: {error}; next try in {wait:g} s")
                sleep(wait)
            else:
                return True
        raise AssertionError

    def try_write(self, record: Mapping[str, Any]) -> None:
        """Write the record and flush it. Raises OSError; FileNotFoundError if the directory is
        gone."""
        self.try_put(_fitting(record, self._room_bytes))

    def try_put(self, data: bytes) -> None:
        """Write any text, like `try_write`. Raises OSError; FileNotFoundError if the directory is
        gone."""
        try:
            _write_all(self._fd, data)
            os.ftruncate(self._fd, len(data))
            os.fsync(self._fd)
            os.rename(room_of(self.path), self.path)  # noqa: PTH104  # as its room was opened
        except FileNotFoundError:
            write_text(self.path, data.decode())  # only the reserved file was removed
            return
        os.fsync(self._directory)

    def drop(self) -> None:
        """Free the reserved space; the record is not needed."""
        self.close()
        room_of(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the descriptors; the reserved space stays."""
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
    """Return the record as JSON; drop optional keys if it would not fit into `size` bytes."""
    short = {**record, "cause": str(record.get("cause"))[:LONGEST_CAUSE]}
    silent = {**short, **dict.fromkeys(short.keys() & {"last_lines", "last_error"})}
    least = {**silent, **dict.fromkeys(silent.keys() & {"progress", "evaluation"})}
    for each in ({**record}, short, silent, least):
        data = json.dumps(each).encode() + b"\n"
        if len(data) <= size:
            return data
    return data
