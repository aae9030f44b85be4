"""Any layout to any layout gives the same bytes: the property that everything else rests on."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layouts import layouts, load, shapes, store, target
from tests.matrices import examples
from zerotools.core import dtypes
from zerotools.core.checkpoint import Key
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.ops.execution.execute import Transfer, execute
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget

TYPES = (dtypes.FLOAT32, dtypes.BFLOAT16, dtypes.INT64, dtypes.BOOL, dtypes.UINT8)
SMALL = MemoryBudget(max_memory=3 * 2 * MIN_TILE_BYTES, workers=2)


def values_of(shape: tuple[int, ...], dtype: dtypes.DType, seed: int) -> Array:
    raw = np.random.default_rng(seed).integers(0, 100, prod(shape))
    return raw.astype(numpy_dtype(dtype)).reshape(shape)


@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_the_same_bytes_arrive(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    dtype = data.draw(st.sampled_from(TYPES))
    key = Key("w", "param")
    values = values_of(shape, dtype, data.draw(st.integers(0, 9)))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        source = store(root / "in", {key: (values, dtype, data.draw(layouts(shape)))})
        wanted = data.draw(layouts(shape, contiguous=True))
        output = target(root / "out", {key: (shape, dtype, wanted)})
        report = execute(
            plan(source, output.checkpoint), source.root, output, transfer=Transfer(budget=SMALL)
        )
        arrived = load(output.checkpoint, key)
    assert arrived.tobytes() == values.tobytes()
    assert report.bytes_written == values.nbytes


@settings(deadline=None, max_examples=examples(50))
@given(st.data())
def test_a_cast_rounds_as_numpy_does(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    key = Key("w", "param")
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        drawn = data.draw(layouts(shape))
        source = store(root / "in", {key: (np.asarray(values), dtypes.FLOAT32, drawn)})
        wanted = data.draw(layouts(shape, contiguous=True))
        output = target(root / "out", {key: (shape, dtypes.BFLOAT16, wanted)})
        execute(
            plan(source, output.checkpoint), source.root, output, transfer=Transfer(budget=SMALL)
        )
        arrived = load(output.checkpoint, key)
    assert arrived.tobytes() == np.asarray(values).astype(ml_dtypes.bfloat16).tobytes()
