"""Metadata of many small tensors is larger than their data, and no attack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.safetensors.files import entry, file_bytes
from zerotools import formats
from zerotools.core.errors import BadFile
from zerotools.io.files import metadata_memory_limit, read_json
from zerotools.io.torchzip import unpickle

COUNT, SMALL = 300, 2**18
"""As 100,000 tensors are to the 64 MiB that any metadata may take."""
NAMES = [f"model.layers.{number}.scale" for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (metadata_memory_limit, read_json, unpickle):
        monkeypatch.setattr(module, "SMALL", SMALL)
    monkeypatch.setattr(unpickle, "_STEP", 2**12)


def _safetensors(path: Path) -> Path:
    header = {name: entry("U8", [1], at, at + 1) for at, name in enumerate(NAMES)}
    path.with_suffix(".safetensors").write_bytes(file_bytes(header, bytes(COUNT)))
    return path.with_suffix(".safetensors")


def _tensors() -> dict[str, Any]:
    import torch

    return {name: torch.ones(1) for name in NAMES}


def _torch(path: Path) -> Path:
    import torch

    torch.save(_tensors(), path)
    return path


def _dcp(path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save(_tensors(), checkpoint_id=path, no_dist=True)
    return path


@pytest.mark.torch
@pytest.mark.parametrize("save", [_safetensors, _torch, _dcp])
@pytest.mark.filterwarnings("ignore")
def test_many_tensors_of_one_element_are_read(save: Callable[[Path], Path], tmp_path: Path) -> None:
    assert len(formats.read(save(tmp_path / "saved.pt")).tensors) == COUNT


def test_denser_metadata_is_refused() -> None:
    with pytest.raises(BadFile, match="made to fill the memory"):
        read_json.parse_json(Path("a.json"), b"[" + b"[]," * 10**4 + b"[]]", lambda: 0)
    with pytest.raises(BadFile, match="made to fill the memory"):
        unpickle.loads(b"\x80\x04" + b"}" * 10**4 + b".", source="a.pt")
    assert read_json.parse_json(Path("a.json"), json.dumps(NAMES).encode(), lambda: 0) == NAMES


def test_metadata_without_data_has_an_upper_limit() -> None:
    most = metadata_memory_limit.MOST_WITHOUT_DATA
    assert metadata_memory_limit.metadata_limit(0, 2**40) == most
    assert metadata_memory_limit.metadata_limit(2**40, 2**20) == SMALL + 2**38
