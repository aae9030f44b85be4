"""--verify: a disk that does not keep what was written is found out before the output is there."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import JOB
from tests.layouts import Placement, load, store, target
from tests.ops.exports import model, noise
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.cast_torch import torch_cast
from zerotools.io.numeric.numpy_dtypes import numpy_cast
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.execution.execute import ReadBack, WriteReport, execute
from zerotools.ops.execution.plan import plan
from zerotools.ops.execution.workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.proof.output_proof import compare_bytes

BUDGET = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def export(tmp_path: Path, **options: object) -> Conversion:
    source = model(tmp_path / "in", {"a": noise(300, 400), "b": noise(300, 400, seed=1)})
    return consolidate.prepare(source, tmp_path / "out", Options(**options))  # type: ignore[arg-type]


def flip(file: Path, offset: int) -> Callable[[int], None]:
    """Damage one byte of the file when everything of it was written."""
    left = [2 * 300 * 400 * 2]

    def on_bytes(count: int) -> None:
        left[0] -= count
        if left[0] == 0:
            with file.open("r+b") as opened:
                opened.seek(offset)
                value = opened.read(1)[0]
                opened.seek(offset)
                opened.write(bytes([value ^ 0x40]))

    return on_bytes


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_what_is_right_passes_and_is_counted(tmp_path: Path, form: str) -> None:
    report = perform(export(tmp_path, format=form), budget=BUDGET, overwrite=False, verify=True)
    assert report.bytes_verified == report.bytes_written == 2 * 300 * 400 * 2
    assert (tmp_path / "out").exists()


def test_a_flipped_bit_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    conversion = export(tmp_path)
    key = next(key for key in conversion.target.checkpoint.tensors if key.name == "b")
    (chunk,) = conversion.target.checkpoint.tensors[key].chunks
    at = chunk.offset + 100_001
    damage = flip(partial_of(tmp_path / "out") / chunk.file, at)
    with pytest.raises(
        BadFile, match=rf"out/model.safetensors differs from .*: byte {at}, in b, is 0x\w\w, but"
    ):
        perform(conversion, budget=BUDGET, overwrite=False, verify=True, on_bytes=damage)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_without_verify_it_is_not_noticed(tmp_path: Path) -> None:
    damage = flip(partial_of(tmp_path / "out") / "model.safetensors", 5000)
    perform(export(tmp_path), budget=BUDGET, overwrite=False, on_bytes=damage)
    assert (tmp_path / "out").exists()


def test_headers_are_read_back_too(tmp_path: Path) -> None:
    conversion = export(tmp_path)

    def swap_names(_: WriteReport) -> None:
        with (partial_of(tmp_path / "out") / "model.safetensors").open("r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = file.read(length)
            file.seek(8)
            file.write(header.replace(b'"a"', b'"c"'))

    with pytest.raises(BadFile, match=r"reads back with another layout: .* differs"):
        perform(conversion, budget=BUDGET, overwrite=False, verify=True, check=swap_names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_reshard_is_verified(tmp_path: Path) -> None:
    conversion = reshard.prepare(JOB, tmp_path / "out", world_size=3)
    assert isinstance(conversion, Conversion)
    report = perform(conversion, budget=BUDGET, overwrite=False, verify=True)
    assert report.bytes_verified == conversion.bytes_of_tensors


@pytest.mark.torch
def test_either_kernel_writes_and_verifies_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    values, key = noise(300, 700) * 1e-5, Key("w", "param")
    halves = [Placement(Box((0, at), (300, 350)), f"{at}", 1, (0, 1)) for at in (0, 350)]
    source = store(tmp_path / "in", {key: (values, dtypes.FLOAT32, halves)})
    written = []
    for name, cast in (("numpy", numpy_cast), ("torch", torch_cast())):
        placed = [Placement(Box.whole(values.shape), "a", 3, (0, 1))]
        output = target(tmp_path / name, {key: (values.shape, dtypes.FLOAT16, placed)})

        def read_back(directory: Path, output=output, cast=cast) -> ReadBack:  # type: ignore[no-untyped-def]
            again = plan(source, output.checkpoint)
            found = compare_bytes(
                again, source.root, output, directory, BUDGET, lambda _: None, cast, Sources()
            )
            return ReadBack(found)

        copies = plan(source, output.checkpoint)
        report = execute(copies, source.root, output, cast=cast, read_back=read_back)
        assert report.bytes_verified == 2 * values.size
        written.append(load(output.checkpoint, key).tobytes())
    assert written == [values.astype(np.float16).tobytes()] * 2
