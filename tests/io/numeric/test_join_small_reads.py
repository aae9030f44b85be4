"""Many small pieces against numpy, and how few reads and copies they take."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.io.numeric.test_gather_elements import Counted
from tests.matrices import examples
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunkBox
from zerotools.core.dtypes import FLOAT32, FLOAT64, DType
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.dtype_casts import numpy_cast
from zerotools.io.numeric.gather_elements import WORTHWHILE_GAP_BYTES, box_reads, gather_elements
from zerotools.io.numeric.join_small_reads import lattice_copies, near_pieces


def pairs(rows: int, columns: int, offset: int = 0) -> list[ChunkBox]:
    """Rows of a tensor in pairs, which are halves in the file."""
    half = rows // 2
    return [
        ChunkBox(chunk, chunk.box)
        for number in range(half)
        for chunk in [
            Chunk(
                Box((2 * number, 0), (2, columns)),
                "file",
                offset + number * columns * 4,
                (half * columns, 1),
            )
        ]
    ]


def gathered(
    pieces: list[ChunkBox], box: Box, data: np.ndarray, room: int, dtype: DType = FLOAT32
) -> tuple[np.ndarray, int]:
    file = Counted(data.tobytes())
    raw, buffer = np.empty(box.numel * dtype.itemsize, np.uint8), np.empty(room, np.uint8)
    gather_elements(cast(ThreadFiles, file), pieces, box, FLOAT32, dtype, raw, buffer, numpy_cast)
    reads = list(box_reads(pieces, box, FLOAT32, dtype, room))
    assert len(reads) == file.reads
    element = np.float32 if dtype == FLOAT32 else np.float64
    return raw.view(element).reshape(box.shape), file.reads


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_pairs_of_rows_are_one_read_and_one_copy(dtype: DType) -> None:
    stored = np.arange(64 * 30, dtype="f4").reshape(2, 32, 30)
    wanted = stored.transpose(1, 0, 2).reshape(64, 30)
    box = Box.whole((64, 30))
    made, reads = gathered(pairs(64, 30), box, stored, 2**16, dtype)
    assert (made == wanted).all()
    assert reads == 1
    (near,), alone = near_pieces(pairs(64, 30), FLOAT32, WORTHWHILE_GAP_BYTES, 2**16)
    assert not alone
    buffer = np.frombuffer(stored.tobytes(), np.uint8)
    parts = list(lattice_copies(near, FLOAT32, buffer, np.empty((64, 30), "f4"), box))
    assert [values.shape for _, values in parts] == [(32, 2, 30)]


def test_what_does_not_fit_or_is_mostly_gaps_is_read_piece_by_piece() -> None:
    found, alone = near_pieces(pairs(64, 30), FLOAT32, WORTHWHILE_GAP_BYTES, 1000)
    assert not found
    assert len(alone) == 32
    far = [ChunkBox(Chunk(Box((n,), (1,)), "file", n * 12000), Box((n,), (1,))) for n in range(3)]
    assert near_pieces(far, FLOAT32, WORTHWHILE_GAP_BYTES, 2**20) == ([], far)
    other = ChunkBox(Chunk(Box((9,), (1,)), "other", 0), Box((9,), (1,)))
    assert near_pieces([far[0], other], FLOAT32, WORTHWHILE_GAP_BYTES, 2**20)[0] == []


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_rows_in_any_order_and_steps_are_where_they_belong(data: st.DataObject) -> None:
    """Rows of a permuted tensor, of which some tile takes a part, with any room to read."""
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    order = data.draw(st.permutations(range(rows)))
    is_transposed = data.draw(st.booleans())
    array = np.arange(rows * columns, dtype="f4").reshape(rows, columns)
    stored = array[list(np.argsort(order))]
    stored = stored.T.copy() if is_transposed else stored
    strides = (1, rows) if is_transposed else (columns, 1)
    first = data.draw(st.integers(0, rows - 1))
    box = Box((first, 0), (data.draw(st.integers(1, rows - first)), columns))
    pieces = []
    for number in range(box.start[0], box.stop[0]):
        own = Box((number, 0), (1, columns))
        chunk = Chunk(own, "file", order[number] * strides[0] * 4, strides)
        pieces.append(ChunkBox(chunk, own))
    room = data.draw(st.sampled_from([64, 200, 4096]))
    made, _ = gathered(pieces, box, stored, room)
    assert (made == array[box.start[0] : box.stop[0]]).all()
