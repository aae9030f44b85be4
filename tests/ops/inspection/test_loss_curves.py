"""The loss of a run, from the files of a job and of the Hugging Face Trainer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import DEEPSPEED, JOB
from zerotools import formats
from zerotools.ops.inspection.loss_curves import MOST_POINTS, LossCurves, loss_curves

TRAINER = DEEPSPEED / "hf-trainer-z3-bf16-w2" / "checkpoint" / "checkpoint-2"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "output" / JOB.name
    shutil.copytree(JOB, path)
    return path


def curves_of(path: Path) -> LossCurves:
    found = loss_curves(formats.read_any(path))
    assert found is not None
    return found


def lines(path: Path, *records: Any) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def test_those_of_a_job_are_in_the_directory_above(step: Path) -> None:
    assert loss_curves(formats.read_any(step)) is None
    lines(
        step.parent / "metrics.jsonl",
        {"step": 1, "loss": 3.5, "lr": 0.1},
        {"step": 2, "loss": None, "lr": 0.2},
        {"step": 2, "eval_loss": 3.25},
        {"text": "of another program"},
        [1],
    )
    with (step.parent / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    found = curves_of(step)
    assert found.loss == [(1, 3.5)]
    assert found.eval_loss == [(2, 3.25)]
    assert found.lr == [(1, 0.1), (2, 0.2)]
    assert found.source == step.parent / "metrics.jsonl"


def test_many_steps_are_means_of_neighbours(step: Path) -> None:
    steps = 2 * MOST_POINTS + 1
    lines(step.parent / "metrics.jsonl", *({"step": n, "loss": n} for n in range(steps)))
    found = curves_of(step)
    assert found.averaged == 3
    assert found.loss[:2] == [(1, 1), (4, 4)]
    assert len(found.loss) <= MOST_POINTS


def test_those_of_the_trainer_are_in_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-2"
    shutil.copytree(TRAINER, path)
    state = json.loads((path / "trainer_state.json").read_text())
    state["log_history"] = [
        {"step": 1, "loss": 2.5, "learning_rate": 0.01},
        {"step": 2, "eval_loss": 2.25},
    ]
    (path / "trainer_state.json").write_text(json.dumps(state))
    found = curves_of(path)
    assert (found.loss, found.eval_loss, found.lr) == ([(1, 2.5)], [(2, 2.25)], [(1, 0.01)])


def test_a_file_that_is_not_json_is_named(step: Path) -> None:
    (step.parent / "trainer_state.json").write_text("{")
    found = curves_of(step)
    assert found.fault is not None
    assert found.loss == []
