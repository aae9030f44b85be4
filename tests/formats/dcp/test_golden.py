"""Checkpoints that torch and accelerate wrote: read whole, and laid out as torch would have."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import tensor_bytes, write
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.distcp.metadata import read_metadata

GOLDEN = Path(__file__).parents[2] / "golden"
TORCH = GOLDEN / "torch-2.13.0-fsdp2"
RANKS = {1: TORCH / "one_rank", 2: TORCH / "two_ranks", 3: TORCH / "three_ranks"}
ACCELERATE = GOLDEN / "accelerate-1.15.0-fsdp2" / "pytorch_model_fsdp_0"


def _expected(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(path.with_name(path.name + ".expected.json").read_text())
    return tree


def _check(checkpoint: Checkpoint, expected: dict[str, Any]) -> None:
    flat = {name: key for key, name in checkpoint.native.flat_keys.items()}
    assert flat.keys() | checkpoint.state.keys() == expected.keys()
    for name, wanted in expected.items():
        if "value" in wanted:
            assert checkpoint.state[name] == wanted["value"]
            continue
        tensor = checkpoint.tensors[flat[name]]
        assert (tensor.dtype.name, list(tensor.shape)) == (wanted["dtype"], wanted["shape"])
        digest = hashlib.sha256(tensor_bytes(checkpoint, flat[name])).hexdigest()
        assert digest == wanted["sha256"], name


@pytest.mark.parametrize("path", [*RANKS.values(), ACCELERATE], ids=lambda path: path.name)
def test_every_byte_is_what_torch_loads(path: Path) -> None:
    checkpoint = read_dcp(path)
    assert checkpoint.problems == []
    _check(checkpoint, _expected(path))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("path", [*RANKS.values(), ACCELERATE], ids=lambda path: path.name)
def test_what_is_laid_out_holds_the_same_bytes(tmp_path: Path, path: Path, ranks: int) -> None:
    source = read_dcp(path)
    written = read_dcp(write(source, lay_out_dcp(source, tmp_path / "out", world_size=ranks)))
    assert written.origin.world_size == ranks
    assert written.tensors.keys() == source.tensors.keys()
    _check(written, _expected(path))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("before", [2, 3])
def test_the_metadata_is_that_of_a_save_at_that_many_ranks(
    tmp_path: Path, before: int, ranks: int
) -> None:
    """Chunk boundaries, their order, the rank of each chunk and of each replicated tensor.

    From two ranks on a checkpoint shows which tensors are sharded; at one they look alike.
    """
    source = read_dcp(RANKS[before])
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=ranks))
    ours, torchs = read_metadata(out / ".metadata"), read_metadata(RANKS[ranks] / ".metadata")
    assert ours.order == torchs.order
    assert ours.paths == torchs.paths
    assert ours.version == torchs.version
    for key, wanted in torchs.tensors.items():
        found = ours.tensors[key]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert [(box, item.file) for box, item in found.parts] == [
            (box, item.file) for box, item in wanted.parts
        ]
    assert {key: item.file for key, item in ours.blobs.items()} == {
        key: item.file for key, item in torchs.blobs.items()
    }


def test_no_path_of_this_machine_is_written(tmp_path: Path) -> None:
    source = read_dcp(RANKS[2])
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=2))
    assert str(tmp_path).encode() not in (out / ".metadata").read_bytes()
    assert b"Path" not in (out / ".metadata").read_bytes()


def test_names_and_roles() -> None:
    job_like, model_only = read_dcp(RANKS[2]), read_dcp(ACCELERATE)
    assert {key.role for key in job_like.tensors} == {"param", "step", "exp_avg", "exp_avg_sq"}
    assert {key.role for key in model_only.tensors} == {"param"}
    assert "model.layers.0.self_attn.q_proj.weight" in {key.name for key in model_only.tensors}
    assert model_only.origin.world_size == 2
