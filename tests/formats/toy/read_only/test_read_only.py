"""A format of two modules and one line of the table is detected, read, converted and refused like
the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.formats.copying import tensor_bytes
from tests.formats.toy.read_only.format import ReadOnlyFormat
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats import FORMATS, table_of
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.consolidate import exported_formats
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert, written_formats
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.completeness import check_completeness
from zerotools.ops.inspection.inspect import inspect

TABLE = table_of(*FORMATS.values(), ReadOnlyFormat())
W = Key("w", "param")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.mkdir()
    entry = {"dtype": "float32", "shape": [3, 4], "offset": 8}
    (path / "tensors.json").write_text(json.dumps({"w": entry}))
    (path / "tensors.bin").write_bytes(bytes(8) + bytes(range(48)))
    return path


def test_it_is_detected_read_and_shown(checkpoint: Path) -> None:
    assert formats.detect(checkpoint, table=TABLE).format == "read_only"
    found = formats.read(checkpoint, table=TABLE)
    assert tensor_bytes(found, W) == bytes(range(48))
    shown = inspect(found, TABLE)
    assert (shown.missing, shown.incomplete, [*shown.problems]) == ((), (), [])
    assert check_completeness(checkpoint, TABLE).problem is None
    assert formats.training_of(found, TABLE).precision is None


@pytest.mark.parametrize("to", ["safetensors", "torch", "dcp"])
def test_it_is_converted(checkpoint: Path, tmp_path: Path, to: str) -> None:
    conversion = prepare_convert(checkpoint, tmp_path / "out", to, {}, table=TABLE)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
    assert tensor_bytes(formats.read(tmp_path / "out"), W) == bytes(range(48))


def test_it_is_never_written(checkpoint: Path, tmp_path: Path) -> None:
    assert {*written_formats(TABLE)} == {*written_formats()}
    assert {*exported_formats(TABLE)} == {*exported_formats()}
    with pytest.raises(Unsupported, match=r"is read_only, which zerotools does not reshard; "):
        reshard.prepare_reshard(checkpoint, tmp_path / "out", world_size=2, table=TABLE)


def test_a_damaged_file_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tensors.json").write_text('{"w": {"dtype": "float32"}}')
    with pytest.raises(
        BadFile, match=r"tensors\.json is damaged \('shape'\); copy or download it again"
    ):
        formats.read(checkpoint, table=TABLE)
