"""Single numbers, in and out of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.training import Scalar
from zerotools.io.numeric.numpy_dtypes import numpy_dtype
from zerotools.io.numeric.scalars import read_scalar, scalar_bytes

TYPES = (
    dtypes.FLOAT64, dtypes.FLOAT32, dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.INT64, dtypes.INT32,
    dtypes.INT16, dtypes.INT8, dtypes.UINT8,
)  # fmt: skip


def scalar(dtype: DType, offset: int = 3) -> Tensor:
    return Tensor(dtype, (), [Chunk(Box((), ()), "f", offset)])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_are_numpys_bytes_and_come_back(dtype: DType, tmp_path: Path) -> None:
    data = scalar_bytes(24, dtype)
    assert data == np.array(24).astype(numpy_dtype(dtype)).tobytes()
    (tmp_path / "f").write_bytes(b"abc" + data)
    assert read_scalar(tmp_path, scalar(dtype)) == Scalar(24, dtype)


def test_a_number_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with pytest.raises(BadFile, match="ends before byte 7"):
        read_scalar(tmp_path, scalar(dtypes.FLOAT32))
    (tmp_path / "f").unlink()
    with pytest.raises(BadFile, match="cannot be read"):
        read_scalar(tmp_path, scalar(dtypes.FLOAT32))
    with pytest.raises(BadFile, match="no file holds a number"):
        read_scalar(tmp_path, Tensor(dtypes.FLOAT32, (), []))
