"""What the names and pieces beside a lost file tell of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zerotools
from tests.formats.safetensors.test_rank_files import write_shard
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.inspection.next_commands import next_commands

W = np.arange(13 * 2, dtype=np.float32).reshape(13, 2)
V = np.arange(6, dtype=np.float32)
FIRST, SECOND = "00001-of-00002", "00002-of-00002"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """13 and 6 rows over three ranks, in two files of the model; `norm` is whole on every rank."""
    root = tmp_path / "run"
    root.mkdir()
    for rank in range(3):
        write_shard(root, rank + 1, {"w": ([5 * rank, 0], W[5 * rank :][:5])}, FIRST)
        pieces = {"v": ([2 * rank], V[2 * rank :][:2])}
        write_shard(root, rank + 1, pieces | ({"norm": ([0], V)} if rank == 1 else {}), SECOND)
    return root


def _lose(root: Path, shard: int, part: str) -> str:
    name = f"shard-{shard:05d}-model-{part}.safetensors"
    (root / name).unlink()
    return name


def test_all_files_are_there(saved: Path) -> None:
    found = formats.read(saved)
    assert inspect(found).problems == ()
    assert found.tensors[Key("w", "param")].shape == (13, 2)


@pytest.mark.parametrize(("part", "name"), [(FIRST, "w"), (SECOND, "v")])
def test_the_last_file_of_one_part(saved: Path, tmp_path: Path, part: str, name: str) -> None:
    lost = _lose(saved, 3, part)
    found = formats.read(saved)
    assert Key(name, "param") not in found.tensors
    first, second = found.problems
    assert first.message.endswith(f"{lost} is missing; other files of the model have 3 shards: "
                                  "take another copy of the model")  # fmt: skip
    assert (second.file, second.tensor, second.blocks) == (lost, name, True)
    with pytest.raises(BadFile, match=f"{lost} is missing"):
        zerotools.consolidate(saved, tmp_path / "out")
    (command,) = next_commands(inspect(found), saved)
    assert command.startswith("zerotools salvage ")
    done = zerotools.salvage(saved, tmp_path / "rest")
    assert name not in zerotools.open(done.destination)


def test_a_file_in_the_middle_leaves_a_hole_and_is_named(saved: Path) -> None:
    lost = _lose(saved, 2, SECOND)
    found = inspect(formats.read(saved))
    assert (found.missing, found.incomplete) == ((lost,), (Key("v", "param"),))


def test_a_file_that_may_never_have_been(tmp_path: Path) -> None:
    """What every rank has whole, one rank alone writes."""
    for rank in range(3):
        write_shard(tmp_path, rank + 1, {"w": ([5 * rank, 0], W[5 * rank :][:5])}, FIRST)
    write_shard(tmp_path, 2, {"norm": ([0], V)}, SECOND)
    found = formats.read(tmp_path)
    assert inspect(found).problems == ()
    (doubt,) = formats.format_of(found).doubts(found).values()
    assert "shard-00001-model-00002-of-00002.safetensors does not exist" in doubt


def test_replicas_of_a_smaller_mesh_are_no_loss(tmp_path: Path) -> None:
    """2 ranks have the pieces, and 2 the same ones, of which one is written."""
    for rank in range(4):
        place = 7 * (rank % 2)
        name, part = ("w", FIRST) if rank < 2 else ("x", SECOND)
        write_shard(tmp_path, rank + 1, {name: ([place, 0], W[place:][:7])}, part)
    assert inspect(formats.read(tmp_path)).problems == ()
