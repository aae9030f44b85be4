"""Checkpoints of several DCP directories, and those of other trainers: golden runs of torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.formats.copying import write
from tests.formats.elements import assert_true
from tests.golden_files import TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.output.output_marker import MARKER
from zerotools.ops.inspection.inspect import inspect

PAIRS = ("fsdp1-dcp-w2", "fsdp1-dcp-w3-flat", "fsdp2-dcp-w3")


@pytest.mark.parametrize("name", [*PAIRS, "fsdp2-tp-dcp-w4", "fsdp2-torchtitan-w2"])
def test_goldens(name: str) -> None:
    checkpoint = formats.read(TORCH / name / "checkpoint")
    assert_true(checkpoint, TORCH / name / "truth.safetensors")
    assert inspect(checkpoint).problems == ()


@pytest.mark.parametrize("ranks", [1, 5])
@pytest.mark.parametrize("name", PAIRS)
def test_a_reshard_makes_the_same_directories(tmp_path: Path, name: str, ranks: int) -> None:
    source = formats.read(TORCH / name / "checkpoint")
    out = write(source, lay_out_dcp(source, tmp_path / "out", world_size=ranks))
    again = formats.read(out)
    assert_true(again, TORCH / name / "truth.safetensors")
    assert (again.origin.world_size, set(again.tensors)) == (ranks, set(source.tensors))
    assert {key: again.state[key] for key in again.state} == {
        key: source.state[key] for key in source.state
    }
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        ours = read_dcp(out / part)
        theirs = read_dcp(source.root / part)
        assert ours.native.paths == theirs.native.paths
        assert set(ours.native.order) == set(theirs.native.order)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TORCH / "fsdp2-dcp-w3" / "checkpoint", tmp_path / "checkpoint-7"))


def test_files_are_named_from_the_root(pair: Path) -> None:
    (pair / "config.json").write_text("{}")
    found = formats.read(pair)
    assert {name.partition("/")[0] for name in found.files} == {
        "pytorch_model_fsdp_0",
        "optimizer_0",
    }
    assert set(found.model_sidecars) == {"config.json"}
    assert formats.read(pair.parent).tensors.keys() == found.tensors.keys()


def test_files_around_come_along_but_for_random_numbers(tmp_path: Path, pair: Path) -> None:
    around = {"config.json": "{}", "trainer_state.json": "[]", "scheduler.pt": "s"}
    for name, text in {**around, "rng_state_0.pth": "r", "random_states_2.pkl": "r"}.items():
        (pair / name).write_text(text)
    (pair / "runs").mkdir()
    source = formats.read(pair)
    target = lay_out_dcp(source, tmp_path / "out", world_size=2)
    write(source, target)
    found = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert {name: found[name].read_text() for name in around} == around
    assert found.keys() - {MARKER} == {*around, "pytorch_model_fsdp_0", "optimizer_0"}
    random, left = target.notes
    assert random.startswith("random_states_2.pkl, rng_state_0.pth hold the random number state")
    assert left == "directories next to the shards are not copied: runs"
    same = lay_out_dcp(source, tmp_path / "same", world_size=3)
    assert {"rng_state_0.pth", "random_states_2.pkl"} <= same.files.keys()


def test_what_an_older_save_left_is_not_carried_along(tmp_path: Path) -> None:
    old = TORCH / "fsdp2-tp-dcp-w4" / "checkpoint"
    path = Path(shutil.copytree(old, tmp_path / "old"))
    for name in ("__9_0.distcp", "__9.metadata", ".metadata.tmp"):
        (path / name).write_text("left over")
    target = lay_out_dcp(formats.read(path), tmp_path / "out", world_size=1)
    assert target.files.keys() == {"__0_0.distcp", ".metadata"}


def test_a_model_without_its_optimizer(pair: Path) -> None:
    shutil.rmtree(pair / "optimizer_0")
    found = formats.read(pair)
    assert {key.role for key in found.tensors} == {"param"}
    assert inspect(found).problems == ()
    assert Key("layer.weight", "param") in found.tensors


def test_an_unfinished_optimizer_is_a_problem(pair: Path) -> None:
    (pair / "optimizer_0" / ".metadata").unlink()
    (problem,) = inspect(formats.read(pair)).problems
    assert "the save of the optimizer was not finished" in problem.message


def test_an_unfinished_model_is_refused(pair: Path) -> None:
    (pair / "pytorch_model_fsdp_0" / ".metadata").unlink()
    with pytest.raises(BadFile, match="was not finished"):
        formats.read(pair)


def test_a_lost_file_of_the_optimizer_is_named(pair: Path) -> None:
    (pair / "optimizer_0" / "__1_0.distcp").unlink()
    said = [problem.message for problem in inspect(formats.read(pair)).problems]
    assert "optimizer_0/__1_0.distcp is missing" in said[0]


def test_several_models_are_said(pair: Path) -> None:
    shutil.copytree(pair / "pytorch_model_fsdp_0", pair / "pytorch_model_fsdp_1")
    notes = formats.read(pair).origin.notes
    assert notes[0].startswith("took pytorch_model_fsdp_0; ")
    assert "also holds pytorch_model_fsdp_1" in notes[0]
