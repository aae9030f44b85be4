"""The command in this process: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.exports import weights_of
from tests.ops.verification.damage import copy
from zerotools.cli.commands.salvage import command
from zerotools.core.errors import BadRequest

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)], standalone_mode=False)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = copy(ZERO3, tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    return path


def test_what_is_lost_is_listed_and_is_exit_status_1(damaged: Path, tmp_path: Path) -> None:
    done = run(damaged, tmp_path / "out")
    assert done.return_value == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"DAMAGED: {damaged} (deepspeed, stage 3, 2 ranks, step 2): ")
    assert lines[0].endswith("18 tensors of 34 have holes; 7 weights left out")
    assert any("rank_1_mp_rank_00_optim_states.pt is missing" in line for line in lines)
    assert "  layer.weight: elements 46:91 (45 of 91)" in lines
    assert any(line.startswith("left out: embed.weight, layer.weight, ") for line in lines)
    assert "  head.weight: it is tied to a weight that is lost" in lines
    assert lines[-1].startswith(f"wrote {tmp_path / 'out'}: 7 weights, ")
    assert "layer.weight" not in weights_of(tmp_path / "out")


def test_filled_holes_are_exit_status_0(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    dry = run(damaged, out, "--fill-from", ZERO3, "--dry-run")
    assert dry.return_value == 0
    assert dry.stdout.splitlines()[-1] == f"would write {out}: 13 weights"
    assert not out.exists()
    done = run(damaged, out, "--fill-from", ZERO3)
    assert done.return_value == 0
    assert f"filled from {ZERO3} (deepspeed, stage 3, 2 ranks, step 2):" in done.stdout
    assert "  layer.weight: elements 46:91 (45 of 91), stored as float32 there" in done.stdout
    said = (
        "salvaged: 6 of 13 weights got 122 elements from another checkpoint; "
        "zerotools-salvage.json in the output directory lists all of them"
    )
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "zerotools.remark": said}
    assert zerotools.open(out).checkpoint.origin.notes == (f"remark in the files: {said}",)
    with pytest.raises(BadRequest, match="exists; choose another output"):
        raise_of(run(damaged, out))
    again = json.loads(run(damaged, out, "--overwrite", "--json").stdout)
    assert (again["complete"], again["output"]) == (False, str(out))
    with safe_open(out / "model.safetensors", "np") as file:
        assert "7 weights of the damaged checkpoint" in file.metadata()["zerotools.remark"]
    with pytest.raises(BadRequest, match="is inside the checkpoint"):
        raise_of(run(damaged, damaged / "out"))


def raise_of(done: Result) -> None:
    if done.exception is not None:
        raise done.exception


def test_a_sound_checkpoint(tmp_path: Path) -> None:
    done = run(ZERO3, tmp_path / "out")
    assert done.return_value == 0
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    first = done.stdout.splitlines()[0]
    assert "34 tensors, and nothing is lost; zerotools consolidate exports it too" in first


def test_nothing_whole_is_nothing_written(damaged: Path, tmp_path: Path) -> None:
    done = run(damaged, tmp_path / "out", "--include", "layer.weight")
    assert done.return_value == 1
    assert done.stdout.splitlines()[-1] == "nothing was written: every weight is damaged"
    assert not (tmp_path / "out").exists()
