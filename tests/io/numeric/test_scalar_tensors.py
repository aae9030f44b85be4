"""Single numbers, in and out of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.training_state import Scalar
from zerotools.io.numeric.dtype_casts import numpy_dtype
from zerotools.io.numeric.scalar_tensors import LazyScalars, read_scalar, scalar_bytes

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
    with pytest.raises(BadFile, match="a number of the optimizer's state is in no file"):
        read_scalar(tmp_path, Tensor(dtypes.FLOAT32, (), []))


def test_tensors_are_read_when_they_are_asked_for_and_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc" + scalar_bytes(3, dtypes.FLOAT32))
    there, lost, plain = (Key(name, "step") for name in ("there", "lost", "plain"))
    read: list[Key] = []

    def reading(key: Key, tensor: Tensor) -> Scalar:
        read.append(key)
        return read_scalar(tmp_path, tensor)

    kept = {there: scalar(dtypes.FLOAT32), lost: Tensor(dtypes.FLOAT32, (), []), plain: Scalar(7)}
    scalars = LazyScalars(kept, reading)
    assert (list(scalars), there in scalars, read) == ([there, lost, plain], True, [])
    three = Scalar(3.0, dtypes.FLOAT32)
    assert [scalars[there], scalars[there], scalars[plain]] == [three, three, Scalar(7)]
    assert read == [there]
    with pytest.raises(BadFile, match="a number of the optimizer's state is in no file"):
        scalars[lost]
