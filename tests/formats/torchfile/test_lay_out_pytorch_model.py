from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.ops.exports import model, noise
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

TENSORS: dict[str, Array] = {
    "a.weight": noise(300, 7),
    "empty": noise(0, 3),
    "count": np.array(7),
    "mask": np.array([True, False]),
    "b.weight": noise(5, seed=1),
    "wide": np.arange(5, dtype=np.uint16),
}


def export(tmp_path: Path, **options: object) -> Path:
    source = model(tmp_path / "in", TENSORS, config__json="{}")
    asked = Options(format="torch", dtype="fp32", **options)  # type: ignore[arg-type]
    conversion = prepare_export(source, tmp_path / "out", asked)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return tmp_path / "out"


def test_the_archive_is_whole_with_right_crcs(tmp_path: Path) -> None:
    with zipfile.ZipFile(export(tmp_path) / "pytorch_model.bin") as archive:
        assert archive.testzip() is None
        found = {archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert found == {values.tobytes() for values in TENSORS.values()}


def test_several_files_have_an_index(tmp_path: Path) -> None:
    out = export(tmp_path, max_shard_bytes=8000)
    index = json.loads((out / "pytorch_model.bin.index.json").read_text())
    assert set(index["weight_map"]) == set(TENSORS)
    assert {path.name for path in out.glob("[!.]*")} == {
        "config.json",
        "pytorch_model.bin.index.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model-00002-of-00002.bin",
    }


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 8000}])
def test_torch_loads_equal_tensors(tmp_path: Path, options: dict[str, object]) -> None:
    torch = pytest.importorskip("torch")
    loaded = {}
    for file in export(tmp_path, **options).glob("*.bin"):
        loaded |= torch.load(file, weights_only=True)
    assert set(loaded) == set(TENSORS)
    for name, values in TENSORS.items():
        assert loaded[name].numpy().tobytes() == values.tobytes(), name
        assert tuple(loaded[name].shape) == values.shape
        assert loaded[name].is_contiguous()
