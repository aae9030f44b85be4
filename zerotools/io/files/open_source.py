"""Open files that are read at offsets, on this machine or in an object store.

Standard library only: the training process imports this module in the job's Python environment,
which may lack the other dependencies of zerotools.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import PosixPath
from typing import BinaryIO, Protocol

from zerotools.core.errors import Unsupported


class OpenSource(Protocol):
    """An open file, as readers of checkpoints use it. Many threads may read it at once."""

    def status(self) -> os.stat_result:
        """Return the status of the file (size, times, inode). It is the current status for a local
        file, and may be the status at the time of opening for other files.
        """

    def read(self, count: int, offset: int) -> bytes:
        """Return `count` bytes from `offset`, or fewer at the end of the file. Raises OSError or
        BadFile.
        """

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on, and return the number of bytes read. The number may be less
        than the size of the view, as for read(2); 0 means the end of the file. Raises the errors of
        `read`.
        """

    def stream(self) -> BinaryIO:
        """Return a stream of the bytes from the first one on. The file stays open when the stream
        is closed.
        """

    def close(self) -> None:
        """Close the file. No reads may follow."""


class FarSource(OpenSource, Protocol):
    """An open file in an object store. Each request has a long latency, so many reads are requested
    at once.
    """

    def fetch(
        self, ranges: Sequence[tuple[int, int]]
    ) -> Callable[[], Sequence[Sequence[memoryview]]]:
        """Request the bytes of `ranges`, each [begin, end) inside the file, and return a function
        that waits for them.

        The function returns the bytes of each range, in parts. Raises the errors of `read`.
        """

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce that small reads in `ranges`, each [begin, end), will follow."""


class LocalSource:
    """An open file of this machine. The object owns the file descriptor."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def read(self, count: int, offset: int) -> bytes:
        return os.pread(self.descriptor, count, offset)

    def read_into(self, view: memoryview, offset: int) -> int:
        return os.preadv(self.descriptor, [view], offset)

    def stream(self) -> BinaryIO:
        return os.fdopen(self.descriptor, "rb", closefd=False)

    def close(self) -> None:
        os.close(self.descriptor)


class SourceStream(io.RawIOBase):
    """A stream of the bytes of an open source that has no descriptor, from the first byte on."""

    def __init__(self, source: OpenSource) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._source.status().st_size)
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._source.read_into(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count


class OpenablePath(PosixPath):
    """A path to a file that the system cannot open: `open_source` opens it instead."""

    def open_source(self) -> OpenSource:
        """Open the file at this path for reading.

        Raises:
            OSError: the file does not exist, or cannot be read.
        """
        raise NotImplementedError


class RemotePath(OpenablePath):
    """A path outside this machine's file systems. Its `__fspath__` raises an error, so functions of
    the system never get a local path of the same name.
    """

    def open_source(self) -> FarSource:
        """Open the file at this path for reading. Raises the errors of `OpenablePath`."""
        raise NotImplementedError

    @property
    def is_root(self) -> bool:
        """True if the path is the root of a store. Nothing can be next to such a path."""
        raise NotImplementedError

    def below(self) -> Iterator[RemotePath]:
        """Return every object below this path."""
        raise NotImplementedError

    @property
    def listing_problem(self) -> str:
        """The reason why this directory could not be listed completely; empty if it was listed."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the cached facts about this path and the paths around it."""
        raise NotImplementedError

    def __fspath__(self) -> str:
        raise Unsupported(
            f"{self} is in an object store, but a file or directory on this machine is needed; "
            "copy it to a disk and name the copy"
        )
