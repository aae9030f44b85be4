"""Numbers of one type in a file, read on access.

The file is not mapped into memory: if another process truncates a mapped file, the next access
silently ends the whole process by SIGBUS. Here it is an error that names the file.
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
    """`count` numbers of numpy's type `kind` from byte `offset` of `path` on; by default all.

    It stays open, so that its name may go; with `files`, which many share, only while it is used.
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
        """Open it.

        Raises:
            BadFile: it is not a regular file, or does not hold a whole number of them.
            OSError: it cannot be opened.
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
        """Return the numbers [start, stop), as far as there are any.

        Raises:
            BadFile: the file is not there any more, or shorter than it was.
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
                    "bytes at the start of the job: a program truncated it while the job read it"
                )
            done += count
