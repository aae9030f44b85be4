"""Files of token ids as one stream."""

from __future__ import annotations

import itertools
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import torch

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.token_files import ITEM_BYTES, TokenArray

_TYPECODES: dict[str, Literal["H", "I", "i", "q"]] = {
    "uint16": "H",
    "uint32": "I",
    "int32": "i",
    "int64": "q",
}
_AT_ONCE = 1 << 22


class TokenStream:
    """The ids of several arrays, one after the other; all are below `vocabulary`."""

    def __init__(self, arrays: Sequence[TokenArray], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._views = [ids_of(array) for array in arrays if array.count]
        self._ends = list(itertools.accumulate(len(view) for view in self._views))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> list[int]:
        """Tokens [start, stop)."""
        found: list[int] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[index] - len(self._views[index])
            found += self._views[index][start - begin : stop - begin].tolist()
            start = self._ends[index]
            index += 1
        return found


def ids_of(array: TokenArray) -> memoryview[int]:
    """The ids of an array that has some, read as they are asked for."""
    with array.path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    part = whole[array.offset : array.offset + array.count * ITEM_BYTES[array.type]]
    return part.cast(_TYPECODES[array.type])


def largest_id(arrays: Sequence[TokenArray]) -> int:
    """The largest id; -1 where there is none.

    Raises:
        BadFile: an id is negative.
    """
    largest = -1
    for array in arrays:
        ids = ids_of(array) if array.count else memoryview(b"")
        for first in range(0, array.count, _AT_ONCE):
            part = ids[first : first + _AT_ONCE]
            values = _tensor(part, array.type)
            if int(values.min()) < 0:
                place = first + int(values.argmin())
                raise BadFile(f"{array.path}: token {place} is {int(values.min())}, not a token id")
            largest = max(largest, int(values.max()))
    return largest


def _tensor(part: memoryview[int], kind: str) -> torch.Tensor:
    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ITEM_BYTES[kind]]
    values = torch.frombuffer(bytearray(part), dtype=signed).long()
    # torch has few operations on unsigned numbers.
    return values & (2 ** (8 * ITEM_BYTES[kind]) - 1) if kind.startswith("u") else values
