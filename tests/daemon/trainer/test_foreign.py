"""A job goes on from what another program saved, with the losses of that program's own next steps.

The checkpoints are of real runs (`tests/foreign_runs`), each with the losses of the program that
went on without a stop. The sums of a step are not made in the same order, so losses are compared
within TOLERANCE, of which those of bf16 have more.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.foreign_runs.setting import (
    AFTER,
    BEFORE,
    BETAS,
    DECAY,
    EPS,
    LEARNING_RATE,
    LENGTH,
    WINDOWS,
    write_tokens,
)
from tests.golden_files import FOREIGN
from tests.matrices import FULL

pytestmark = pytest.mark.torch

CASES = sorted(path.name for path in FOREIGN.iterdir())
TOLERANCE = {"fp32": 2e-6, "bf16": 5e-3}
STAGES = {
    case: range(4) if FULL else [stage] for case, stage in zip(CASES, cycle(range(4)), strict=False)
}
"""Each case at one stage, all stages among them: what a rank reads depends on neither alone."""


def precision(case: str) -> str:
    return "bf16" if case.endswith("bf16") else "fp32"


def continued(case: str) -> dict[str, Any]:
    """What the program said."""
    return dict(json.loads((FOREIGN / case / "continued.json").read_text()))


def job_of(case: str, tokens: Path, **changes: Any) -> dict[str, Any]:
    """The job that goes on from a case, with the program's hyperparameters."""
    tree: dict[str, Any] = {
        "model": {"config": continued(case)["config"]},
        "data": {
            "text": [],
            "tokens": [str(tokens)],
            "token_type": "uint16",
            "sequence_length": LENGTH,
        },
        "train": {
            "steps": BEFORE + AFTER,
            "batch_size": WINDOWS,
            "precision": precision(case),
            "learning_rate": LEARNING_RATE,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": DECAY,
        },
        "resume_from": str(FOREIGN / case / "checkpoint"),
    }
    return {**tree, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    directory = tmp_path_factory.mktemp("foreign")
    write_tokens(directory / "tokens.bin")
    jobs = {
        f"{case}-{stage}": job_of(case, directory / "tokens.bin", zero={"stage": stage})
        for case in CASES
        for stage in STAGES[case]
    }
    return run_all(directory, directory / "tokens.bin", 2, jobs)


@pytest.mark.parametrize(
    ("case", "stage"), [(case, stage) for case in CASES for stage in STAGES[case]]
)
def test_the_losses_are_those_of_the_programs_own_next_steps(
    runs: Runs, case: str, stage: int
) -> None:
    expected = continued(case)["losses"]
    assert len(expected) == AFTER
    found = runs.losses(f"{case}-{stage}")
    assert found == pytest.approx(expected, rel=TOLERANCE[precision(case)])
