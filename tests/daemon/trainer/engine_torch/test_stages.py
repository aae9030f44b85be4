"""Every ZeRO stage trains alike, and resumes from every stage at any number of ranks.

At one number of ranks a resumed run is bit-identical to one that was not interrupted; at another,
weights and optimizer state arrive bit for bit, and losses differ by the order of summation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.dcp.lay_out_converted import (
    lay_out_dcp as lay_out_training_dcp,
)
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(35, "every stage, resumed")]
STAGES = (0, 1, 2, 3)
# On one rank no stage divides anything. What three have is what two have, in rows that do not
# divide: the stages that tools are compared with are enough.
TRAINED = {2: STAGES, 3: STAGES if FULL else (1, 2), 1: STAGES if FULL else (0,)}
RESUMED = {2: STAGES if FULL else (1, 3), 3: STAGES if FULL else (2,), 1: STAGES if FULL else ()}
MOVED_FROM = RESUMED if FULL else {2: (1, 3), 3: (2,)}
"""Stages by the number of ranks. Each is resumed on 2 or 3, and stage 0 in `test_offload`; a
replicated and a sharded one move on from 2 to 3."""
TOLERANCE = 2e-6


def stage_jobs(runs: Path, ranks: int) -> dict[str, dict[str, Any]]:
    """Two steps at each stage, and for each of `RESUMED` a run that goes on from its first."""
    jobs: dict[str, dict[str, Any]] = {}
    for stage in TRAINED[ranks]:
        common = {"train": {"steps": 2}, "zero": {"stage": stage}}
        source = runs / f"stage-{stage}" / "out" / find_job_checkpoints.directory_name(1)
        jobs[f"stage-{stage}"] = {**common, "checkpoint": {"every": 1}}
        if stage in RESUMED[ranks]:
            jobs[f"resumed-{stage}"] = {**common, "resume_from": str(source)}
    return jobs


def moved(source: Runs, ranks: int) -> dict[str, dict[str, Any]]:
    """Runs that go on from the first step of those in `source`, on `ranks` ranks, each at another
    stage."""
    return {
        f"moved-{stage}": {
            "train": {"steps": 2},
            "zero": {"stage": (stage + 1) % len(STAGES)},
            "resume_from": str(source.checkpoint(f"stage-{stage}", 1)),
        }
        for stage in MOVED_FROM.get(ranks, ())
    }


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """All of it on 2 ranks, on 3 that also go on from the 2, and on 1 that goes on from the 3."""
    root = tmp_path_factory.mktemp("stages")
    found: dict[int, Runs] = {}
    further: dict[str, dict[str, Any]] = {}
    for ranks in (2, 3, 1):
        directory = root / str(ranks)
        jobs = stage_jobs(directory / "out", ranks) | further
        asked: dict[str, Any] = {"asked": ("begins", "evaluates"), "blocks": 2}
        found[ranks] = run_all(directory, text, ranks, jobs, ends=False, **asked)
        further = moved(found[ranks], ranks)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3] if FULL else [2, 3])
def test_resumed_runs_end_bit_for_bit_where_uninterrupted_ones_do(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    runs = by_ranks[ranks]
    for stage in RESUMED[ranks]:
        assert runs.losses(f"resumed-{stage}") == runs.losses(f"stage-{stage}")[1:]
        assert runs.ended(f"resumed-{stage}") == runs.ended(f"stage-{stage}")


def test_all_begin_with_the_same_weights(by_ranks: dict[int, Runs]) -> None:
    begun = {
        runs.report[f"stage-{stage}"]["begun"]
        for ranks, runs in by_ranks.items()
        for stage in TRAINED[ranks]
    }
    assert len(begun) == 1


def test_ranks_wait_longer_for_one_another_until_steps_are_taken(by_ranks: dict[int, Runs]) -> None:
    for report in by_ranks[2].report.values():
        assert report["waits"] == [7200, 600]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_are_those_of_stage_0_on_one_rank(by_ranks: dict[int, Runs], ranks: int) -> None:
    wanted = pytest.approx(by_ranks[1].losses("stage-0"), rel=TOLERANCE)
    for stage in TRAINED[ranks]:
        assert by_ranks[ranks].losses(f"stage-{stage}") == wanted


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_gives_the_loss_that_training_begins_with(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    for name, report in by_ranks[ranks].report.items():
        wanted = by_ranks[ranks].losses(name)[0]
        assert report["evaluated"] == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.parametrize(("source", "ranks"), [(2, 3), (3, 1)])
def test_every_stage_arrives_whole_at_another_stage_and_number_of_ranks(
    by_ranks: dict[int, Runs], source: int, ranks: int
) -> None:
    before, after = by_ranks[source], by_ranks[ranks]
    for stage in MOVED_FROM[source]:
        begun = before.report[f"resumed-{stage}"]["begun"]
        assert after.report[f"moved-{stage}"]["begun"] == begun
        wanted = pytest.approx(before.losses(f"stage-{stage}")[1:], rel=TOLERANCE)
        assert after.losses(f"moved-{stage}") == wanted


def boxes(checkpoint: Checkpoint, role: str) -> dict[str, list[str]]:
    """The boxes of each tensor of a role."""
    return {
        key.name: sorted({str(chunk.box) for chunk in tensor.chunks})
        for key, tensor in checkpoint.tensors.items()
        if key.role == role
    }


def cut(path: Path, role: str) -> dict[str, list[str]]:
    """The same of a checkpoint on disk."""
    return boxes(formats.read(path), role)


def test_each_rank_saves_its_part_of_the_optimizer_at_stage_1(by_ranks: dict[int, Runs]) -> None:
    saved = [by_ranks[2].checkpoint(f"stage-{stage}", 1) for stage in STAGES]
    assert cut(saved[1], "exp_avg") == cut(saved[3], "exp_avg") != cut(saved[0], "exp_avg")
    assert cut(saved[1], "param") == cut(saved[0], "param") != cut(saved[3], "param")
    assert cut(saved[2], "param") == cut(saved[3], "param")
    replicated = [
        set(find_job_checkpoints.verify_checkpoint_files(path).replicated) for path in saved
    ]
    assert replicated[0] > replicated[1] > replicated[2] == replicated[3]


@pytest.mark.parametrize("stage", [1, 2])
def test_reshard_writes_what_the_trainer_would_have(
    by_ranks: dict[int, Runs], tmp_path: Path, stage: int
) -> None:
    from tests.daemon.trainer.tensors import digest

    source, out = by_ranks[2].checkpoint(f"stage-{stage}", 1), tmp_path / "out"
    conversion = reshard.prepare_reshard(source, out, world_size=3)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    assert digest(out) == digest(source)
    for role in ("param", "exp_avg"):
        assert cut(out, role) == cut(by_ranks[3].checkpoint(f"stage-{stage}", 1), role)


def test_conversion_shards_what_stage_1_did_not(by_ranks: dict[int, Runs], tmp_path: Path) -> None:
    source = formats.read(by_ranks[2].checkpoint("stage-1", 1))
    training = formats.training_of(source)
    target = lay_out_training_dcp(source, training, tmp_path, world_size=2, style="torch")
    wanted = cut(by_ranks[2].checkpoint("stage-3", 1), "param")
    assert boxes(target.checkpoint, "param") == wanted
