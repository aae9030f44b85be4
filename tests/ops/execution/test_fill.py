"""One tile of several tensors is what numpy makes of them, and losses are told by tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.gather import Scratch
from zerotools.io.numeric.numpy_dtypes import CastLosses, numpy_dtype
from zerotools.ops.execution.fill import fill
from zerotools.ops.execution.tiles import RangePart, Tile

A, B = Key("a", "param"), Key("b", "param")
VALUES = np.array([1, 2, np.nan, 4, 7e4, 6, -np.inf, 8], dtype=np.float32)


@pytest.fixture
def files(tmp_path: Path) -> OpenFiles:
    (tmp_path / "s0").write_bytes(b"xyz" + VALUES[:5].tobytes())
    (tmp_path / "s1").write_bytes(VALUES[5:].tobytes())
    return OpenFiles(tmp_path)


def tile(dtype: DType) -> Tile:
    """Tensor a of five elements and b of three; both read on in a file where they can."""
    parts = [
        RangePart(A, 5, [Range(0, 2, "s0", 3), Range(2, 5, "s0", 11)]),
        RangePart(B, 3, [Range(0, 3, "s1", 0)]),
    ]
    return Tile("out", 40, 8 * dtype.itemsize, FLOAT32, dtype, parts)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("read_bytes", [8, 64])
def test_the_parts_lie_one_behind_another(files: OpenFiles, dtype: DType, read_bytes: int) -> None:
    with files, np.errstate(over="ignore"):
        data, _ = fill(files, tile(dtype), Scratch(64, read_bytes))
        assert bytes(data) == VALUES.astype(numpy_dtype(dtype)).tobytes()


def test_what_is_lost_is_told_of_the_tensor_that_lost_it(files: OpenFiles) -> None:
    with files:
        _, cast = fill(files, tile(FLOAT16), Scratch(64, 64))
        _, same = fill(files, tile(FLOAT32), Scratch(64, 64), counting=True)
        _, unasked = fill(files, tile(FLOAT32), Scratch(64, 64))
    assert cast == [
        (A, CastLosses(overflowed=1, largest=7e4, nans=1)),
        (B, CastLosses(infinities=1)),
    ]
    assert same == [(A, CastLosses(nans=1)), (B, CastLosses(infinities=1))]
    assert unasked == []


def test_a_file_that_ends_early_is_named(files: OpenFiles, tmp_path: Path) -> None:
    (tmp_path / "s1").write_bytes(b"1234")
    with files, pytest.raises(BadFile, match=r"s1 ends at byte 4, but 12 bytes were expected"):
        fill(files, tile(FLOAT32), Scratch(64, 64))
