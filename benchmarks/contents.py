"""Made-up numbers, cheap at any size: a tensor's values are a stretch of one fixed pattern.

Element i of a tensor is `PATTERN[(phase + i) % PERIOD]`, where the phase follows from the tensor's
name and role. Any slice of any tensor is then known without the rest, and a file is written with
few large writes out of one buffer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from zerotools.core.dtypes import BFLOAT16, FLOAT32, DType
from zerotools.io.torchzip.lay_out_archive import lay_out
from zerotools.io.torchzip.pickle_values import Ordered, Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps

PERIOD = 2**20 + 7
ZEROS, STEPS = -1, -2
STEP = 100
"""Where the run is: the one number that files must agree in."""


@cache
def _pattern(dtype: DType) -> NDArray[np.generic]:
    """Two periods, so that one period is contiguous from every phase on; nothing is below zero, as
    sums of squares are not."""
    values = np.abs(np.random.default_rng(0).normal(0.0, 0.02, PERIOD)).astype(np.float32)
    return np.tile(values, 2).astype(bfloat16 if dtype == BFLOAT16 else np.float32)


@dataclass(frozen=True, slots=True)
class Run:
    """`count` elements of the pattern from `phase` on, or of ZEROS, or STEPS, all of them STEP."""

    phase: int
    count: int


def run(name: str, role: str, begin: int, end: int) -> Run:
    """Elements [begin, end) of a flattened tensor."""
    return Run((crc32(f"{name}|{role}".encode()) + begin) % PERIOD, end - begin)


def values(runs: Sequence[Run], dtype: DType) -> Iterator[NDArray[np.generic]]:
    """The elements of `runs`, in arrays that are not to be changed."""
    pattern = _pattern(dtype)
    for part in runs:
        source, phase = pattern, part.phase
        if phase in (ZEROS, STEPS):
            constant = np.zeros(1, pattern.dtype) if phase == ZEROS else np.full(1, STEP)
            source, phase = np.repeat(constant.astype(pattern.dtype), PERIOD), 0
        for done in range(0, part.count, PERIOD):
            yield source[phase : phase + min(PERIOD, part.count - done)]


class Storages:
    """The storages of one file, in the order in which its pickle refers to them."""

    def __init__(self) -> None:
        self._dtypes: list[DType] = []
        self._runs: list[Sequence[Run]] = []

    def add(self, runs: Sequence[Run], dtype: DType = FLOAT32) -> Storage:
        self._dtypes.append(dtype)
        self._runs.append(runs)
        return Storage(str(len(self._runs) - 1), dtype, sum(part.count for part in runs))

    def flat(self, runs: Sequence[Run], *, used: int | None = None) -> StoredTensor:
        """A 1-D float32 tensor in a storage of its own, of its first `used` elements."""
        storage = self.add(runs)
        return tensor(storage, 0, (storage.numel if used is None else used,))

    def write(self, path: Path, tree: object, *, sparse: bool) -> None:
        """The file that torch.save would write; `sparse` leaves holes and wrong CRCs for all
        data but steps."""
        pickle = dumps(tree)
        sizes = [
            sum(part.count for part in runs) * dtype.itemsize
            for runs, dtype in zip(self._runs, self._dtypes, strict=True)
        ]
        layout = lay_out(pickle, sizes)
        filled = [number for number, size in enumerate(sizes) if size]
        with path.open("wb") as file:
            file.truncate(layout.length)
            for offset, data in layout.literals:
                os.pwrite(file.fileno(), data, offset)
            for number, payload in zip(filled, layout.payloads, strict=True):
                if sparse and self._runs[number][0].phase != STEPS:
                    continue
                crc, at = 0, payload.offset
                for part in values(self._runs[number], self._dtypes[number]):
                    numbers = part.view(np.uint8).data
                    crc = crc32(numbers, crc)
                    at += os.pwrite(file.fileno(), numbers, at)
                for place in payload.crc_at:
                    os.pwrite(file.fileno(), crc.to_bytes(4, "little"), place)


def tensor(storage: Storage, offset: int, shape: tuple[int, ...]) -> StoredTensor:
    """A contiguous view of a storage."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    assert storage.dtype is not None
    return StoredTensor(
        storage, storage.dtype, offset, shape, tuple(strides), hooks=Ordered(), metadata=None
    )
