"""Hugging Face's Trainer saves at 2 ranks, `zerotools reshard`, and it resumes at 3."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.golden.deepspeed_runs.launch import REPOSITORY, environment, launch
from tests.golden_files import digests

pytestmark = [
    pytest.mark.full,  # test_judge has what DeepSpeed loads, test_continued how training continues
    pytest.mark.deepspeed,
    pytest.mark.timeout(600),
    pytest.mark.dear(40, "the Trainer on 2 and 3 ranks"),
]

RANK = "tests.golden.deepspeed_runs.trainer_continuing"
SAVED = "checkpoint-3"
TOLERANCE = {"2": 1e-6, "3": 5e-3}


def reshard(saved: Path, out: Path) -> None:
    """As a user does it, in a process without torch or DeepSpeed."""
    command = ["reshard", str(saved), str(out), "--world-size", "3"]
    run(
        [sys.executable, "-m", "zerotools", *command],
        env=environment(0, 1, 0),
        cwd=REPOSITORY,
        check=True,
        timeout=60,
    )


def told(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "told.json").read_text())
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both stages: `before` on 2 ranks without interruption, `after` on 3 from its checkpoint."""
    directory = tmp_path_factory.mktemp("trainer")
    launch(RANK, ["before"], 2, directory)
    for stage in TOLERANCE:
        (directory / "after" / stage).mkdir(parents=True)
        reshard(directory / "before" / stage / SAVED, directory / "after" / stage / SAVED)
    launch(RANK, ["after", SAVED], 3, directory)
    return directory


@pytest.mark.parametrize("stage", list(TOLERANCE))
def test_the_trainer_has_the_saved_state_at_three_ranks(runs: Path, stage: str) -> None:
    before, after = runs / "before" / stage, runs / "after" / stage
    assert told(after)["held"] == told(before)["held"]
    assert told(after)["held"]["step"] == 3
    found = digests(after / "held.safetensors")
    assert {key.partition("|")[2] for key in found} >= {"param", "exp_avg", "exp_avg_sq", "step"}
    assert found == digests(before / "held.safetensors")


@pytest.mark.parametrize("stage", list(TOLERANCE))
def test_the_trainer_goes_on_at_three_ranks(runs: Path, stage: str) -> None:
    """Rows, learning rates and losses are those of the run that was not interrupted."""
    before, after = told(runs / "before" / stage), told(runs / "after" / stage)
    assert after["last"] == before["last"] == 7
    expected = before["losses"]
    assert list(after["losses"]) == list(expected) == [str(step) for step in range(1, 8)]
    for step, loss in after["losses"].items():
        assert loss == pytest.approx(expected[step], rel=TOLERANCE[stage]), step
