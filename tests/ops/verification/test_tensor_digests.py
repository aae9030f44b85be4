from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.layouts import Placement, layouts, shapes, store
from tests.matrices import examples
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, DType
from zerotools.core.errors import BadFile
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.ops.execution.read_in_blocks import BLOCK_ELEMENTS
from zerotools.ops.verification.tensor_digests import TensorDigest, digests_of

from .damage import SMALL

KEY = Key("w", "param")


def by_the_book(raw: bytes, itemsize: int) -> str:
    """The page docs/reference/digest-manifest.md, in four lines."""
    size = 2**20 * itemsize
    blocks = [raw[at : at + size] for at in range(0, len(raw), size)]
    digests = b"".join(xxhash.xxh3_128_digest(block) for block in blocks)
    return str(xxhash.xxh3_128_hexdigest(digests))


def one(checkpoint: Checkpoint) -> TensorDigest:
    return digests_of(checkpoint, [KEY], SMALL)[KEY]


def stored(directory: Path, values: Array, dtype: DType, places: list[Placement]) -> Checkpoint:
    return store(directory, {KEY: (values, dtype, places)})


def whole(values: Array) -> list[Placement]:
    return [Placement(Box.whole(values.shape), "a.bin", 3, tuple(range(values.ndim)))]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_digest_does_not_depend_on_the_layout(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = data.draw(shapes)
    dtype = data.draw(st.sampled_from([FLOAT32, BFLOAT16, INT64]))
    values = np.arange(np.prod(shape, dtype=int)).astype(numpy_dtype(dtype)).reshape(shape)
    directory = tmp_path_factory.mktemp("layout")
    found = one(stored(directory, values, dtype, data.draw(layouts(shape))))
    assert found.digest == by_the_book(values.tobytes(), dtype.itemsize)
    assert found.shape == shape


@pytest.mark.parametrize("numel", [0, 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64], ids=str)
def test_blocks_are_counted_in_elements(tmp_path: Path, numel: int, dtype: DType) -> None:
    values = np.random.default_rng(numel).normal(size=numel).astype(numpy_dtype(dtype))
    found = one(stored(tmp_path, values, dtype, whole(values)))
    assert found.digest == by_the_book(values.tobytes(), dtype.itemsize)
    half = values.astype(np.float32).astype(np.float16)
    assert found.casts["float16"] == by_the_book(half.tobytes(), 2)


def test_a_cast_is_the_digest_of_an_export(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(70, 90)).astype(np.float32)
    master = one(stored(tmp_path / "a", values, FLOAT32, whole(values)))
    for dtype in (BFLOAT16, FLOAT16):
        cast = values.astype(numpy_dtype(dtype))
        export = one(stored(tmp_path / dtype.name, cast, dtype, whole(cast)))
        assert master.casts[dtype.name] == export.digest == export.casts[dtype.name]
        assert master.digest != export.digest


def test_every_nan_is_the_same_in_a_cast(tmp_path: Path) -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x7F800001, 0x3F800000], np.uint32)
    values = bits.view(np.float32)
    master = one(stored(tmp_path / "a", values, FLOAT32, whole(values)))
    quiet = np.array([0x7FC0] * 3 + [0x3F80], np.uint16).view(ml_dtypes.bfloat16)
    export = one(stored(tmp_path / "b", quiet, BFLOAT16, whole(quiet)))
    assert master.casts == export.casts
    assert master.digest == by_the_book(values.tobytes(), 4)


def test_integers_have_no_casts(tmp_path: Path) -> None:
    values = np.arange(5)
    assert one(stored(tmp_path, values, INT64, whole(values))).casts == {}


def test_a_hole_is_refused(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    half = [Placement(Box((0,), (3,)), "a.bin", 0, (0,))]
    with pytest.raises(BadFile, match="is incomplete"):
        one(stored(tmp_path, values, FLOAT32, half))
