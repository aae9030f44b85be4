"""A range of an open file, read by absolute position."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.metadata_memory_limit import DataSize, bytes_on_disk
from zerotools.io.files.open_source import OpenSource


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of `length` bytes from byte `offset` of the open file `source`.

    `path` is named in messages. `kept` are parts of the range that are in memory already, each with
    its start.
    """

    source: OpenSource
    path: Path
    offset: int
    length: int
    kept: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def whole(cls, source: OpenSource, path: Path) -> FileRange:
        """Return the range of the whole file, with its present size."""
        return cls(source, path, 0, source.status().st_size)

    def keeping_ends(self, count: int) -> FileRange:
        """Read the first and last `count` bytes, and return the same range with these bytes kept in
        memory.

        If all needed values are in these bytes, nothing else is read. Raises the errors of `read`.
        """
        last = max(0, self.length - count)
        first = min(count, last)
        ends = (0, self.read(0, first)), (last, self.read(last, self.length - last))
        return FileRange(self.source, self.path, self.offset, self.length, ends)

    def read(self, at: int, count: int) -> bytes:
        """Return `count` bytes from `at` on, counted from the start of the range.

        Raises:
            BadFile: not all of the bytes are inside the range, or the file ends before them.
        """
        if at < 0 or count < 0 or at + count > self.length:
            raise BadFile(f"{self} has {self.length} bytes, so {count} bytes at {at} are outside")
        for begin, known in self.kept:
            if begin <= at and at + count <= begin + len(known):
                return known[at - begin : at - begin + count]
        data = self.source.read(count, self.offset + at)
        if len(data) != count:
            raise BadFile(
                f"{self.path} is truncated: it ends at byte {self.source.status().st_size}, but "
                f"{count} bytes are needed from byte {self.offset + at} on; copy or download it "
                "again"
            )
        return data

    def other_data_size(self, described: int) -> DataSize:
        """Return a `data_size` function for the memory limit of a pickle that has `described` bytes
        of this file. The function returns how many other bytes the file has on the disk.
        """
        return lambda: max(0, bytes_on_disk(self.source.status()) - described)

    def __str__(self) -> str:
        if self.offset == 0:
            return str(self.path)
        return f"{self.path} (at byte {self.offset})"


SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
