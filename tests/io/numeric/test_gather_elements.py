from __future__ import annotations

from itertools import permutations
from typing import cast

import ml_dtypes
import numpy as np
import pytest

from tests.layouts import slices
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunkBox
from zerotools.core.dtypes import FLOAT32
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.dtype_casts import NONE_LOST, numpy_cast
from zerotools.io.numeric.gather_elements import cast_ordered, gather_elements


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
    gather_elements(held, [piece], box, FLOAT32, FLOAT32, raw, buffer, numpy_cast)
    assert np.array_equal(raw.view(np.float32).reshape(box.shape), values[slices(box)])
    assert file.reads <= max(most_reads, 3 * len(file._data) // most)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("shape", [(70, 130, 9), (150, 2, 140), (2, 300, 100), (130, 140, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_every_order_is_copied(order: tuple[int, ...], shape: tuple[int, ...], dtype: type) -> None:
    count = int(np.prod(shape))
    values = (np.arange(count) % 251).astype(dtype).reshape(shape).transpose(order)
    for made in permutations(range(3)):
        out = np.zeros([values.shape[dim] for dim in made], dtype).transpose(np.argsort(made))
        assert cast_ordered(out, values, numpy_cast) == NONE_LOST
        assert (out == values).all()


def test_a_part_of_an_array_is_written_and_nothing_beside_it() -> None:
    whole = np.zeros((200, 300, 2), np.uint16)
    values = np.arange(2 * 280 * 190, dtype=np.uint16).reshape(2, 280, 190).transpose(2, 1, 0)
    cast_ordered(whole[5:195, 10:290], values, numpy_cast)
    assert (whole[5:195, 10:290] == values).all()
    whole[5:195, 10:290] = 0
    assert not whole.any()


def test_rows_that_are_repeated_are_copied() -> None:
    row = np.arange(400, dtype="f4")
    values = np.broadcast_to(row, (300, 400))
    out = np.zeros((400, 300), "f4").T
    cast_ordered(out, values, numpy_cast)
    assert (out == row).all()


def test_a_cast_counts_what_is_lost_in_every_block() -> None:
    values = np.ones((300, 400), "f4").T
    values[0, 0] = values[399, 299] = 1e38
    out = np.zeros((400, 300), ml_dtypes.float8_e5m2)
    with np.errstate(over="ignore"):
        losses = cast_ordered(out, values, numpy_cast)
    assert losses.overflowed == 2
    assert (out[1:-1].astype("f4") == 1).all()
