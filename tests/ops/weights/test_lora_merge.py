"""Adapters added to their weights, from chunks that lie anywhere, some rows at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.runs.records import a_record
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import Target
from zerotools.formats.dcp.kept_for_writer import DcpNative
from zerotools.ops.conversions.conversion import Conversion, check_output
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.weights import adapter_arithmetic
from zerotools.ops.weights.lora_merge import merge_adapters
from zerotools.runs.training_record import JobRecord, LoraRecord

SCALE = 1.5
WEIGHT = Key("layer.q.base_layer.weight", "param")
DOWN = Key("layer.q.lora_A.default.weight", "param")
UP = Key("layer.q.lora_B.default.weight", "param")
OTHER = Key("layer.norm.weight", "param")
RECORD = a_record(lora=LoraRecord(2, SCALE))


def written(root: Path, arrays: dict[Key, np.ndarray], record: JobRecord = RECORD) -> Checkpoint:
    """A checkpoint of matrices, each cut into two blocks of rows in one file."""
    root.mkdir()
    data, tensors = b"", {}
    for key, array in arrays.items():
        half = len(array) // 2
        chunks = []
        for first, part in ((0, array[:half]), (half, array[half:])):
            start = (first, *[0] * (array.ndim - 1))
            chunks.append(Chunk(Box(start, part.shape), "data", len(data)))
            data += part.tobytes()
        tensors[key] = Tensor(dtypes.FLOAT32, array.shape, tuple(chunks))
    (root / "data").write_bytes(data)
    origin = Origin("dcp", root)
    return Checkpoint(
        root, tensors, origin, files={"data": len(data)}, native=DcpNative(job=record)
    )


def matrices(rows: int = 9, columns: int = 5) -> dict[Key, np.ndarray]:
    shapes = {WEIGHT: (rows, columns), DOWN: (2, columns), UP: (rows, 2), OTHER: (columns,)}
    draw = np.random.default_rng(0)
    return {key: draw.standard_normal(shape).astype("f4") for key, shape in shapes.items()}


@pytest.mark.parametrize(
    ("rows", "columns"), [(9, 5), (0, 5), (3, adapter_arithmetic.BLOCK_BYTES // 8 + 1)]
)
def test_the_sum_takes_the_place_of_the_parts(tmp_path: Path, rows: int, columns: int) -> None:
    arrays = matrices(rows, columns)
    merged = merge_adapters(written(tmp_path / "source", arrays), tmp_path / "scratch")
    assert merged is not None
    plain = Key("layer.q.weight", "param")
    assert list(merged.checkpoint.tensors) == [plain, OTHER]
    assert not (tmp_path / "scratch").exists()
    with merged.sums():
        found = load_tensors(merged.checkpoint, dict.fromkeys((plain, OTHER), dtypes.FLOAT32))
    wanted = arrays[WEIGHT] + np.float32(SCALE) * (arrays[UP] @ arrays[DOWN])
    np.testing.assert_allclose(found[plain], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[OTHER], arrays[OTHER])
    assert not (tmp_path / "scratch").exists()


def test_other_runs_are_left_alone(tmp_path: Path) -> None:
    record = replace(RECORD, lora=None)
    checkpoint = written(tmp_path / "source", {OTHER: matrices()[OTHER]}, record)
    assert merge_adapters(checkpoint, tmp_path / "scratch") is None


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    arrays = matrices()
    half = {key: array for key, array in arrays.items() if key != UP}
    with pytest.raises(BadFile, match=r"the adapter of layer\.q has no lora_B"):
        merge_adapters(written(tmp_path / "half", half), tmp_path / "scratch")
    wrong = {**arrays, DOWN: arrays[DOWN][:, :4].copy()}
    with pytest.raises(
        BadRequest, match=r"has shape \[9, 5\], but its adapter is for shape \[9, 4\]"
    ):
        merge_adapters(written(tmp_path / "wrong", wrong), tmp_path / "scratch")


def test_a_layer_that_keeps_its_weight_transposed_gets_the_sum_so(tmp_path: Path) -> None:
    arrays = matrices(5, 5)  # a square one does not show it by its shape
    record = replace(RECORD, lora=LoraRecord(2, SCALE, ("layer.q",)))
    merged = merge_adapters(written(tmp_path / "source", arrays, record), tmp_path / "scratch")
    assert merged is not None
    plain = Key("layer.q.weight", "param")
    with merged.sums():
        found = load_tensors(merged.checkpoint, {plain: dtypes.FLOAT32})[plain]
    wanted = arrays[WEIGHT] + np.float32(SCALE) * (arrays[UP] @ arrays[DOWN]).T
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    mixed = {**matrices(5, 9), DOWN: arrays[DOWN], UP: matrices(9, 5)[UP]}
    source = written(tmp_path / "mixed", mixed, record)
    assert merge_adapters(source, tmp_path / "scratch") is not None


def test_an_adapter_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    arrays = {key: array for key, array in matrices().items() if key != WEIGHT}
    with pytest.raises(BadFile, match=r"layer\.q\.weight, which the base model does not have"):
        merge_adapters(written(tmp_path / "source", arrays), tmp_path / "scratch")


def test_what_a_killed_or_interrupted_run_left_is_in_nobodys_way(tmp_path: Path) -> None:
    source = written(tmp_path / "source", matrices())
    scratch = tmp_path / "not there yet" / "scratch"
    merged = merge_adapters(source, scratch)
    assert merged is not None
    assert merged.bytes == 9 * 5 * 4
    merged.scratch.mkdir(parents=True)
    (merged.scratch / "7.f32").write_bytes(b"half a sum")

    def export(error: type[BaseException]) -> None:
        with merged.sums():
            assert [path.name for path in merged.scratch.iterdir()] == ["0.f32"]
            raise error

    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            export(error)
        assert list(scratch.parent.iterdir()) == []
    with merged.sums(), pytest.raises(BadRequest, match="another run is writing"):
        merged.sums().__enter__()


def test_the_sums_need_room_too(tmp_path: Path) -> None:
    source = written(tmp_path / "source", matrices())
    elsewhere = replace(source, root=tmp_path / "out")
    conversion = Conversion(source, Target(elsewhere, {}), sums_bytes=2**62)
    with pytest.raises(BadRequest, match=f"needs {2**62} bytes"):
        check_output(conversion, overwrite=False)
