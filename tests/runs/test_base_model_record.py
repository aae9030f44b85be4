"""Which files a base model is in, and whether they are still the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs.records import a_record
from zerotools.core.errors import BadFile, BadRequest
from zerotools.runs.base_model_record import BaseRecord, base_mismatch, record_base
from zerotools.runs.training_record import LoraRecord, read_record, write_record


@pytest.fixture
def base(tmp_path: Path) -> BaseRecord:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("b.safetensors", "a.safetensors"):
        (directory / name).write_bytes(name.encode())
    return record_base(directory, ["b.safetensors", "a.safetensors"], "nf4")


def test_a_record_comes_back(base: BaseRecord, tmp_path: Path) -> None:
    record = a_record(lora=LoraRecord(4, 2.0, (), base))
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert list(base.files) == ["a.safetensors", "b.safetensors"]
    single = replace(base, double_quant=False)
    write_record(tmp_path, a_record(lora=LoraRecord(4, 2.0, (), single)))
    read = read_record(tmp_path).lora
    assert read is not None
    assert read.base == single
    write_record(tmp_path, a_record(lora=LoraRecord(4, 2.0)))
    assert "base" not in json.loads((tmp_path / "job.json").read_text())["lora"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": {}}, "lora.base: files: lists none"),
        ({"files": []}, "must be a table with path, precision and files"),
        ({"path": 3}, "path and precision must be strings"),
        ({"double_quant": 1}, "double_quant must be true or false"),
        ({"files": {"../a": {"size": 1, "sha256": "x"}}}, "is not a file below the directory"),
        ({"files": {"a": {"size": -1, "sha256": "x"}}}, "must have a size and a sha256"),
    ],
)
def test_a_damaged_record_is_refused(
    base: BaseRecord, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = write_record(tmp_path, a_record(lora=LoraRecord(4, 2.0, (), base)))
    tree = json.loads(path.read_text())
    tree["lora"]["base"] |= change
    path.write_text(json.dumps(tree))
    with pytest.raises(BadFile, match=said):
        read_record(tmp_path)


def test_another_file_is_noticed_by_its_size_or_its_bytes(base: BaseRecord) -> None:
    directory = Path(base.path)
    assert base_mismatch(base, directory) is None
    (directory / "a.safetensors").write_bytes(b"A.safetensors")
    assert base_mismatch(base, directory, digests=False) is None
    assert "a.safetensors has SHA-256" in (base_mismatch(base, directory) or "")
    (directory / "a.safetensors").write_bytes(b"a")
    assert "has 1 bytes, but had 13" in (base_mismatch(base, directory, digests=False) or "")
    (directory / "a.safetensors").unlink()
    assert "No such file" in (base_mismatch(base, directory) or "")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"model\.path: .*a\.safetensors cannot be read"):
        record_base(tmp_path, ["a.safetensors"], "nf4")
