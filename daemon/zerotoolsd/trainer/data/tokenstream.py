"""Files of token ids as one stream."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.number_file import NumberFile
from zerotools.jobs.datafiles.token_files import TokenArray
from zerotoolsd.trainer.data.sequences import Ids

_NUMPY = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_AT_ONCE = 1 << 22


class TokenStream:
    """The ids of several arrays, one after the other; all are below `vocabulary`."""

    def __init__(self, arrays: Sequence[TokenArray], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        files = OpenFiles(Path("/"), named_by="data.tokens")
        self._views = [ids_of(array, files) for array in arrays if array.count]
        self._ends = list(itertools.accumulate(len(view) for view in self._views))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> Ids:
        """Return tokens [start, stop).

        Raises:
            BadFile: a file is gone, or shorter than before.
        """
        parts: list[Ids] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - len(self._views[index])
            parts.append(self._views[index].read(start - begin, stop - begin).astype(np.int64))
            start = self._ends[index]
            index += 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def ids_of(array: TokenArray, files: OpenFiles | None = None) -> NumberFile:
    """Return the ids of an array, read on request."""
    return NumberFile(array.path, _NUMPY[array.type], array.offset, array.count, files=files)


def largest_id(arrays: Sequence[TokenArray]) -> int:
    """Return the largest id; -1 without ids.

    Raises:
        BadFile: an id is negative.
    """
    largest = -1
    for array in arrays:
        ids = ids_of(array)
        for first in range(0, array.count, _AT_ONCE):
            values = ids.read(first, first + _AT_ONCE)
            least = int(values.min())
            if least < 0:
                place = first + int(values.argmin())
                raise BadFile(f"{array.path}: token {place} is {least}, not a token id")
            largest = max(largest, int(values.max()))
    return largest
