from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from tests.layouts import slices
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunkBox
from zerotools.core.dtypes import FLOAT32
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.gather import gather
from zerotools.io.numeric.numpy_dtypes import numpy_cast


class Counted:
    """A file in memory that counts how often it is read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.reads = 0

    def read_into(self, _: str, offset: int, buffer: memoryview) -> None:
        self.reads += 1
        buffer[:] = self._data[offset : offset + len(buffer)]


@pytest.mark.parametrize(
    ("order", "shape", "box", "most_reads"),
    [
        ((1, 0), (1000, 800), Box((0, 0), (1000, 800)), 4),  # all of it: as it lies
        ((1, 0), (16384, 40), Box((100, 0), (200, 40)), 40),  # far apart: one read for each run
        ((2, 0, 1), (300, 20, 40), Box((7, 0, 0), (200, 20, 40)), 40),
        ((0, 2, 1), (30, 20, 40), Box((0, 0, 0), (30, 20, 40)), 1),
    ],
)
@pytest.mark.parametrize("most", [64 * 1024, 2**20])
def test_a_tensor_in_another_order_is_read_in_few_reads(
    order: tuple[int, ...], shape: tuple[int, ...], box: Box, most_reads: int, most: int
) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    stored = np.ascontiguousarray(values.transpose(order))
    strides = [0] * len(shape)
    for axis, stride in zip(order, stored.strides, strict=True):
        strides[axis] = stride // 4
    chunk = Chunk(Box.whole(shape), "file", 0, tuple(strides))
    file = Counted(stored.tobytes())
    raw, buffer = np.empty(box.numel * 4, np.uint8), np.empty(most, np.uint8)
    piece = ChunkBox(chunk, box)
    held = cast(ThreadFiles, file)
    gather(held, [piece], box, FLOAT32, FLOAT32, raw, buffer, numpy_cast)
    assert np.array_equal(raw.view(np.float32).reshape(box.shape), values[slices(box)])
    assert file.reads <= max(most_reads, 3 * len(file._data) // most)
