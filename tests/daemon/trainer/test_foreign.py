"""A job goes on from what another program saved, with the losses of that program's own next steps.

The checkpoints are of real runs (`tests/golden/foreign_runs`), each with the losses of the program
that went on without a stop. The sums of a step are not made in the same order, so losses are
compared within TOLERANCE, of which those of bf16 have more.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.golden.foreign_runs.setting import (
    AFTER,
    BEFORE,
    BETAS,
    DECAY,
    EPS,
    LEARNING_RATE,
    LENGTH,
    WINDOWS,
    make_model,
    write_tokens,
)
from tests.golden_files import FOREIGN
from tests.matrices import FULL
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.conversions.convert_foreign_to_job import prepare_job
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.resume_from_other_program.foreign_run import read_run
from zerotools.runs.training_record import read_record

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dear(40, "a job from each program, and at each stage where all are asked for"),
]

CASES = sorted(path.name for path in FOREIGN.iterdir())
TOLERANCE = {"fp32": 1e-6, "bf16": 2e-4}
RUN = (
    CASES
    if FULL
    else ["accelerate-ddp", "deepspeed-z2-bf16", "deepspeed-z3", "fsdp2-accelerate", "hf-trainer"]
)
"""Whole state, masters beside 16-bit weights, partitions, shards, and numbers for names. What is
read of the others is compared in `formats`, by value."""
STAGES = {
    case: range(4) if FULL else [stage] for case, stage in zip(RUN, cycle(range(4)), strict=False)
}
"""Each case at one stage, all stages among them: what a rank reads depends on neither alone."""
CONVERTED = CASES if FULL else ["deepspeed-z2-bf16", "hf-trainer"]
"""Written for jobs by `convert --to job`: one with masters beside 16-bit weights, and one whose
state has numbers for names."""


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
        "resume_order": "model",
    }
    return {**tree, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    directory = tmp_path_factory.mktemp("foreign")
    write_tokens(directory / "tokens.bin")
    jobs = {
        f"{case}-{stage}": job_of(case, directory / "tokens.bin", zero={"stage": stage})
        for case in RUN
        for stage in STAGES[case]
    }
    for case in CONVERTED:
        place = converted(case, directory / "converted" / case)
        jobs[f"converted-{case}"] = job_of(
            case, directory / "tokens.bin", resume_from=str(place), zero={"stage": 3}
        )
    whole = job_of(RESTARTED, directory / "tokens.bin")
    jobs["begun"] = {**whole, "train": {**whole["train"], "steps": BEFORE + 2}}
    jobs["restarted"] = {**whole, "output_dir": str(directory / "out" / "begun" / "out")}
    return run_all(directory, directory / "tokens.bin", 2, jobs, ends=("begun",), blocks=2)


RESTARTED = "fsdp2-accelerate"


def converted(case: str, place: Path) -> Path:
    """What `zerotools convert --to job` makes of a case."""
    options: dict[str, Any] = {"world_size": 3}
    path = FOREIGN / case / "checkpoint"
    run = read_run(path)
    if run.training.unnamed and "config.json" in run.checkpoint.model_sidecars:
        options["order"] = "model"
    elif run.training.unnamed:
        order = place.with_name(f"{case}.txt")
        order.parent.mkdir(parents=True, exist_ok=True)
        model = make_model(**continued(case)["config"])
        order.write_text("".join(f"{name}\n" for name, _ in model.named_parameters()))
        options["order"] = order
    place.parent.mkdir(parents=True, exist_ok=True)
    done = prepare_job(path, place, options)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    return place


@pytest.mark.parametrize(
    ("case", "stage"), [(case, stage) for case in RUN for stage in STAGES[case]]
)
def test_the_losses_are_those_of_the_programs_own_next_steps(
    runs: Runs, case: str, stage: int
) -> None:
    expected = continued(case)["losses"]
    assert len(expected) == AFTER
    found = runs.losses(f"{case}-{stage}")
    assert found == pytest.approx(expected, rel=TOLERANCE[precision(case)])


@pytest.mark.parametrize("case", CONVERTED)
def test_so_they_are_from_what_convert_wrote_for_jobs(runs: Runs, case: str) -> None:
    found = runs.losses(f"converted-{case}")
    assert found == pytest.approx(continued(case)["losses"], rel=TOLERANCE[precision(case)])


def test_a_job_that_is_started_again_goes_on_from_its_own_checkpoint(runs: Runs) -> None:
    record = read_record(runs.checkpoint("begun", BEFORE + 2))
    assert (record.made_from, record.consumed_sequences) == (None, 2 * WINDOWS)
    expected = continued(RESTARTED)["losses"][2:]
    assert runs.losses("restarted") == pytest.approx(expected, rel=TOLERANCE["fp32"])
