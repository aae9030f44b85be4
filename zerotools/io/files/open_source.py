"""A file that is open to be read at offsets: of this machine, or in an object store.

Standard library only: the training process reads checkpoints too.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import PosixPath
from typing import BinaryIO, Protocol

from zerotools.core.errors import Unsupported


class OpenSource(Protocol):
    """The interface of an open file for readers of checkpoints. Many threads may read at once."""

    def status(self) -> os.stat_result:
        """Return the status of the file when it was opened, or now."""

    def read(self, count: int, offset: int) -> bytes:
        """Return `count` bytes from `offset`, fewer at the end of the file; raises OSError or
        BadFile."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on, or as much of it as one call gives; 0 is the end of the
        file. Raises as `read`."""

    def stream(self) -> BinaryIO:
        """Return the bytes from the first on. The file stays open when the stream is closed."""

    def close(self) -> None:
        """Close it; no reads follow."""


class FarSource(OpenSource, Protocol):
    """A source in a store. Reads take long to begin, so many are requested at once."""

    def fetch(
        self, ranges: Sequence[tuple[int, int]]
    ) -> Callable[[], Sequence[Sequence[memoryview]]]:
        """Request the bytes of `ranges`, each [begin, end) inside the file. Return a function that
        waits for them: for each range its bytes, in parts. Raises as `read`."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce small reads at these positions, each [begin, end)."""


class LocalSource:
    """A file of this machine, by the descriptor that it owns."""

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
    """The bytes of an open source that has no descriptor, from the first on."""

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


class RemotePath(PosixPath):
    """A path outside this machine's file systems. Functions that need a local path refuse it by
    `__fspath__`: the system never gets a file of its name."""

    def open_source(self) -> FarSource:
        """Open it to be read.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        raise NotImplementedError

    @property
    def is_root(self) -> bool:
        """True if it is a whole store, so that nothing lies next to it."""
        raise NotImplementedError

    def below(self) -> Iterator[RemotePath]:
        """Return every object below it."""
        raise NotImplementedError

    @property
    def listing_problem(self) -> str:
        """A sentence if the directory could not be listed, so that files may be missing."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop cached facts about this path and paths around it, so that they are requested
        again."""
        raise NotImplementedError

    def __fspath__(self) -> str:
        raise Unsupported(
            f"{self} is in an object store, but a file or directory on this machine is needed; "
            "copy it to a disk and name the copy"
        )
