"""Saving beside training: the same bytes as at a standstill, and a run that goes on from them."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, job, start
from tests.daemon.trainer.kills import killable, survive
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import read_manifest

pytestmark = [pytest.mark.torch, pytest.mark.dear(30, "five layouts, each three times")]
STEPS = (1, 2)
FAULTY = Path(__file__).parents[1] / "rank_faulty.py"
# At stages 1 and 2 a rank saves as with offload, and the same tensors in other places. Adafactor's
# state is whole, as all is at stage 0; copies of shards are told apart as at a standstill.
STAGES = (0, 1, 2, 3) if FULL else (3,)
CASES: dict[str, dict[str, Any]] = {
    **{f"stage-{stage}": {"zero": {"stage": stage}} for stage in STAGES},
    "offload": {"zero": {"stage": 2}, "offload": {"optimizer": "cpu"}},
}
if FULL:
    CASES |= {
        "replicated-shards": {"zero": {"stage": 2, "shard_size": 1}},
        "adafactor": {"train": {"optimizer": "adafactor"}, "zero": {"stage": 0}},
    }
RESUMED = CASES if FULL else ("stage-3",)
"""What the others save is what they save at a standstill, byte for byte."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """Two ranks; GPT-2 drops out, so each rank's random numbers must be those of the step too."""
    directory = tmp_path_factory.mktemp("async")
    jobs = {}
    for case, changes in CASES.items():
        train = {"steps": STEPS[-1], **changes.get("train", {})}
        tree = {"model": {"config": TINY_GPT2}, **changes, "train": train}
        beside = {"every": 1, "asynchronous": True}
        jobs[f"sync-{case}"] = {**tree, "checkpoint": {"every": 1}}
        jobs[f"async-{case}"] = {**tree, "checkpoint": beside}
        if case in RESUMED:
            source = (
                directory / "out" / f"async-{case}" / "out" / find_job_checkpoints.directory_name(1)
            )
            jobs[f"resumed-{case}"] = {**tree, "resume_from": str(source)}
    held_out = {"fraction": 0.1, "every": 1}
    by_eval = {"every": 1, "keep_last": 1, "best": "eval_loss"}
    jobs["evaluated"] = {"checkpoint": by_eval, "eval": held_out, "train": {"learning_rate": 0.3}}
    kept = {"every": 1, "keep_last": 1, "keep_every": 2, "best": "loss", "asynchronous": True}
    jobs["kept"] = {"checkpoint": kept, "train": {"steps": 5}}
    spoilt = {"learning_rate": 1e37, "stop_after_nan": 3, "steps": 9}
    jobs["patient"] = {"train": spoilt, "checkpoint": {"every": 1, "asynchronous": True}}
    # The first update overflows fp32 itself.
    hopeless = {"learning_rate": 1e39, "stop_after_nan": 3, "steps": 9}
    jobs["spoilt"] = {"train": hopeless, "checkpoint": {"every": 1, "asynchronous": True}}
    as_told = [name for name in jobs if not name.startswith("resumed")]
    return run_all(directory, text, 2, jobs, ends=False, as_told=as_told)


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoints_are_those_of_a_run_that_waits(runs: Runs, case: str) -> None:
    assert runs.losses(f"async-{case}") == runs.losses(f"sync-{case}")
    for step in STEPS:
        waited = read_manifest(runs.checkpoint(f"sync-{case}", step))
        beside = read_manifest(runs.checkpoint(f"async-{case}", step))
        # `.metadata` is a pickle of random ids, too.
        different = [name for name in waited if waited[name] != beside.get(name)]
        assert waited.keys() == beside.keys()
        assert set(different) <= {"dcp/.metadata"}
    assert runs.ended(f"async-{case}") == runs.ended(f"sync-{case}")


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_goes_on_from_one_bit_for_bit(runs: Runs, case: str) -> None:
    assert runs.losses(f"resumed-{case}") == runs.losses(f"sync-{case}")[1:]
    assert runs.ended(f"resumed-{case}") == runs.ended(f"sync-{case}")
    record = find_job_checkpoints.read_record(runs.checkpoint(f"sync-{case}", STEPS[-1]))
    assert record.aliases == {"lm_head.weight": "transformer.wte.weight"}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_writes_its_part(runs: Runs, case: str) -> None:
    shards = runs.checkpoint(f"async-{case}", STEPS[-1]) / find_job_checkpoints.DCP
    sizes = [path.stat().st_size for path in shards.glob("*.distcp")]
    assert len(sizes) == 2
    assert max(sizes) < 1.2 * min(sizes)


def test_old_ones_go_but_for_every_second_and_the_best(runs: Runs) -> None:
    output_dir = runs.directory / "kept" / "out"
    losses = runs.losses("kept")
    best = 1 + losses.index(min(losses))
    steps = {
        find_job_checkpoints.step_of(path.name)
        for path in find_job_checkpoints.list_checkpoints(output_dir)
    }
    assert steps == {2, 4, 5, best}
    assert (
        output_dir / find_job_checkpoints.BEST
    ).read_text() == f"{find_job_checkpoints.directory_name(best)}\n"
    record = find_job_checkpoints.read_record(runs.checkpoint("kept", best))
    assert record.measured == {"loss": losses[best - 1]}


def test_the_best_by_evaluation_is_the_one_that_evaluated_best(runs: Runs) -> None:
    output_dir = runs.directory / "evaluated" / "out"
    best = find_job_checkpoints.hinted_checkpoint(output_dir, find_job_checkpoints.BEST)
    assert best is not None
    records = [
        find_job_checkpoints.read_record(path)
        for path in find_job_checkpoints.list_checkpoints(output_dir)
    ]
    smallest = min(records, key=lambda record: record.measured["eval_loss"])
    assert find_job_checkpoints.step_of(best.name) == smallest.step


def test_steps_that_are_not_finite_are_skipped_until_they_are_too_many(runs: Runs) -> None:
    report = runs.report["patient"]
    assert [outcome["is_skipped"] for outcome in report["outcomes"]] == [False, True, True]
    assert not any(math.isfinite(outcome["grad_norm"]) for outcome in report["outcomes"][1:])
    assert re.match(
        r"after 2 skipped steps in a row, the .* of step 4 is (nan|inf): ", report["error"]
    )
    record = find_job_checkpoints.verify_checkpoint_files(runs.checkpoint("patient", 3))
    assert record.skipped_steps == 2
    assert find_job_checkpoints.newest_valid(
        runs.directory / "patient" / "out"
    ).path == runs.checkpoint("patient", 3)


def test_weights_that_are_not_finite_are_not_saved(runs: Runs) -> None:
    assert "has values that are not finite, and is not saved" in runs.report["spoilt"]["error"]
    assert list((runs.directory / "spoilt" / "out").iterdir()) == []


def test_a_sigkill_at_any_moment_costs_the_steps_since_the_last_checkpoint(
    tmp_path: Path, text: Path
) -> None:
    kills, steps = (2, 24) if FULL else (1, 16)
    tree = killable(text, ranks=2, stage=3, steps=steps)
    # On a busy machine all steps may be done before the first kill comes.
    killed = (len(survive(tmp_path / str(n), tree, kills, seed=n)) > 1 for n in range(3, 8))
    assert any(killed)


def test_what_fails_beside_training_is_told_and_a_stop_waits_for_what_does_not(
    tmp_path: Path, text: Path
) -> None:
    (tmp_path / "fault").write_text("full disk")
    tree = job(
        text,
        ranks=2,
        train={"steps": 100_000},
        checkpoint={"every": 2, "asynchronous": True, "keep_last": 1},
    )
    attempt = start(tmp_path, tree, script=FAULTY)
    attempt.mailbox.wait_for("save_failed")
    attempt.processes[1].terminate()
    assert attempt.finish() == [75, 75], attempt.log()
    assert [event["step"] for event in attempt.events("save_failed")] == [2]
    assert "No space left on device" in attempt.events("save_failed")[0]["why"]
    steps = [event["step"] for event in attempt.events("checkpoint")]
    assert steps[-1] == max(attempt.losses())
    assert steps == sorted(set(steps))
    [newest] = find_job_checkpoints.list_checkpoints(tmp_path / "out")
    assert find_job_checkpoints.verify_checkpoint_files(newest).step == steps[-1]
    assert attempt.datagrams[-1]["phase"] == "stopped"
