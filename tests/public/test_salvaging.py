"""salvage from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.exports import weights_of
from tests.ops.verification.damage import copy

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = copy(ZERO3, tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    return path


def test_what_is_whole_is_written(damaged: Path, tmp_path: Path) -> None:
    planned = zerotools.salvage(damaged, tmp_path / "out", dry_run=True)
    assert (planned.written, planned.dry_run, (tmp_path / "out").exists()) == (False, True, False)
    told: list[zerotools.ProgressUpdate] = []
    done = zerotools.salvage(damaged, tmp_path / "out", progress=told.append)
    assert (done.written, done.is_complete, done.is_whole) == (True, False, False)
    assert set(done.weights) == set(planned.weights) == set(weights_of(tmp_path / "out"))
    assert "layer.weight" in done.left_out
    assert ("layer.weight", "param") in done.holes
    assert told[0].stage == "examine"
    assert told[-1].stage == "salvage"
    assert done.to_json()["output"] == str(tmp_path / "out")


def test_what_is_lost_is_taken_from_another(damaged: Path, tmp_path: Path) -> None:
    done = zerotools.salvage(damaged, tmp_path / "out", fill_from=str(ZERO3), include="layer.*")
    assert done.is_complete
    assert {key.name for key, _ in done.filled} == {"layer.weight", "layer.bias"} & set(
        done.weights
    )
