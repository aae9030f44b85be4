"""One tile of several tensors is what numpy makes of them, and losses are told by tensor."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.scaled_casts import drawn_casts
from tests.io.numeric.test_quantised_values import numbers
from tests.layouts import layouts, load, store, target
from tests.matrices import examples
from tests.ops.quantised.models import FP8, fp8, plain, scales, write
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range
from zerotools.core.scaled_cast import ScaledCast
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.dtype_casts import Array, LostValues, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.io.numeric.quantised_values import values_of
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.execute import Transfer, execute
from zerotools.ops.execution.fill_tile import fill_tile
from zerotools.ops.execution.plan_copies import plan, prove_plan
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
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
        data, _ = fill_tile(files, tile(dtype), Scratch(64, read_bytes))
        assert bytes(data) == VALUES.astype(numpy_dtype(dtype)).tobytes()


def test_what_is_lost_is_told_of_the_tensor_that_lost_it(files: OpenFiles) -> None:
    with files:
        _, cast = fill_tile(files, tile(FLOAT16), Scratch(64, 64))
        _, same = fill_tile(files, tile(FLOAT32), Scratch(64, 64), counting=True)
        _, unasked = fill_tile(files, tile(FLOAT32), Scratch(64, 64))
    assert cast == [
        (A, LostValues(overflowed=1, largest=7e4, nans=1)),
        (B, LostValues(infinities=1)),
    ]
    assert same == [(A, LostValues(nans=1)), (B, LostValues(infinities=1))]
    assert unasked == []


def test_a_file_that_ends_early_is_named(files: OpenFiles, tmp_path: Path) -> None:
    (tmp_path / "s1").write_bytes(b"1234")
    with (
        files,
        pytest.raises(
            BadFile, match=r"s1 is truncated: it ends at byte 4, but 12 bytes were expected"
        ),
    ):
        fill_tile(files, tile(FLOAT32), Scratch(64, 64))


SMALL = MemoryBudget(max_memory=3 * 2 * MIN_TILE_BYTES, workers=2)
KEY = Key("w", "param")


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_what_arrives_is_what_is_computed_of_the_whole(data: st.DataObject) -> None:
    cast: ScaledCast = data.draw(drawn_casts)
    inputs = numbers(cast, 1)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        drawn = {
            Key(name, "param"): (array, cast.inputs[name].dtype, data.draw(layouts(array.shape)))
            for name, array in inputs.items()
        }
        source = store(root / "in", drawn)
        held = {name: source.tensors[Key(name, "param")] for name in inputs}
        whole = ScaledCast(cast.dtype, cast.shape, (), cast.scheme, held)
        source.tensors[KEY] = whole  # type: ignore[index]
        wanted = data.draw(layouts(cast.shape, contiguous=True))
        output = target(root / "out", {KEY: (cast.shape, cast.dtype, wanted)})
        assert prove_plan(source, output.checkpoint) >= 1
        execute(
            plan(source, output.checkpoint), source.root, output, transfer=Transfer(budget=SMALL)
        )
        arrived = load(output.checkpoint, KEY)
    expected = values_of(cast.scheme, Box.whole(cast.shape), inputs, cast.dtype)
    assert np.asarray(arrived).tobytes() == np.ascontiguousarray(expected).tobytes()


def _fp8(rows: int, columns: int) -> dict[str, Array]:
    return {
        "a.weight": fp8(rows, columns),
        "a.weight_scale_inv": scales(rows // 128, columns // 128),
    }


CASES = {
    "fp8 to bf16": (_fp8(1024, 4096), FP8, "bf16"),
    "bf16 to fp8": ({"a.weight": plain(1024, 4096)}, None, "fp8-block"),
    "bf16 to mxfp8": ({"a.weight": plain(1024, 4096)}, None, "mxfp8"),
    "experts to bf16": (
        {
            "e.up_blocks": np.ones((1, 2048, 128, 16), np.uint8),
            "e.up_scales": np.full((1, 2048, 128), 120, np.uint8),
        },
        {"quant_method": "mxfp4"},
        "bf16",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_is_the_budget(tmp_path: Path, case: str) -> None:
    tensors, said, dtype = CASES[case]
    source = write(tmp_path / "m", tensors, said)
    budget = MemoryBudget(max_memory=3 * 2**20, workers=2)
    conversion = prepare_export(source, tmp_path / "warm", Options(dtype=dtype))
    perform_conversion(conversion, budget=budget, overwrite=False)  # tables, which stay
    again = prepare_export(source, tmp_path / "out", Options(dtype=dtype))
    tracemalloc.start()
    try:
        perform_conversion(again, budget=budget, overwrite=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < budget.max_memory + 2**18, peak


def test_inputs_with_a_hole_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "m", _fp8(128, 128), FP8)
    conversion = prepare_export(source, tmp_path / "out", Options(dtype="bf16"))
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(BadFile):
        perform_conversion(conversion, budget=SMALL, overwrite=False)
