"""A file of numbers of one dtype, which are read when they are accessed.

The file is not mapped into memory. If another process truncated a mapped file, the next access
would end this process by SIGBUS, without a message. A read instead raises an error that names the
file.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.regular_files import open_regular

Numbers = npt.NDArray[Any]


class NumberFile:
    """The numbers in a file: `count` numbers of numpy's dtype `kind`, from byte `offset` of `path`
    on.

    By default all numbers up to the end of the file are included. The file stays open, so its name
    may be removed. With `files`, open files that several objects share, the file is open only while
    it is used.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        offset: int = 0,
        count: int | None = None,
        *,
        files: OpenFiles | None = None,
    ) -> None:
        """Open the file.

        Raises:
            BadFile: the file is not a regular file, or ends in the middle of a number.
            OSError: the file cannot be opened.
        """
        self._path = path
        self._kind = np.dtype(kind)
        self._offset = offset
        self._files = files
        if files is None:
            self._descriptor = open_regular(path, is_source=False)
            weakref.finalize(self, os.close, self._descriptor)
        if count is None:
            count, rest = divmod(path.stat().st_size - offset, self._kind.itemsize)
            if rest:
                raise BadFile(f"{path} ends in the middle of a number; remove it")
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Numbers:
        """Return the numbers with the indices [start, stop). There are fewer if the file has fewer.

        Raises:
            BadFile: the file does not exist any more, or is shorter than before.
        """
        stop = min(stop, self._count)
        found = np.empty(max(0, stop - start), self._kind)
        view = memoryview(found.view(np.uint8))  # type: ignore[arg-type]
        self._fill(self._offset + start * self._kind.itemsize, view)
        return found

    def _fill(self, at: int, view: memoryview) -> None:
        if self._files is not None:
            self._files.read_into(str(self._path), at, view)
            return
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], at + done)
            if not count:
                raise BadFile(
                    f"{self._path} ends at byte {at + done}, but had at least {at + len(view)} "
                    "bytes at the start of the job: a program truncated the file; copy it again"
                )
            done += count
