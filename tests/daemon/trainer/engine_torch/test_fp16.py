"""fp16 training: overflows are skipped by all ranks alike, counted, saved and resumed."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.core.dtypes import FLOAT16
from zerotools.core.training_state import LossScale
from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.training_summary import summarize, training_to_json
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.engine.nan_and_loss_scale import initial_loss_scale, loss_scale_after

pytestmark = [pytest.mark.torch, pytest.mark.dear(20, "every stage in fp16")]
STAGES = (0, 1, 2, 3) if FULL else (0, 3)
"""At stage 2 gradients go as at stage 3; stage 1 has masters, which skip in `test_offload`."""
STEPS = 10
IN_A_ROW = 20
NEAR_FP32 = 2e-2
HIGH = Fp16Spec(initial_scale_power=21, loss_scale_window=3)
"""A scale at which this model's gradients overflow, and that comes down in a few steps."""


def fp16(scale: Fp16Spec, *, stage: int = 3, **train: Any) -> dict[str, Any]:
    return {
        "env": {FP16_ON_CPU: "1"},
        "fp16": asdict(scale),
        "zero": {"stage": stage},
        "train": {
            "steps": STEPS,
            "precision": "fp16",
            "schedule": "cosine",
            "warmup_steps": 2,
            "batch_size": 4,
            **train,
        },
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """On two ranks: each stage from a scale that is too high, one resumed between two overflows,
    a low fixed scale, the same in fp32, and two that never come down."""
    directory = tmp_path_factory.mktemp("fp16")
    jobs = {f"stage-{stage}": fp16(HIGH, stage=stage) for stage in STAGES}
    jobs["stage-3"]["checkpoint"] = {"every": 2}
    source = directory / "out" / "stage-3" / "out" / find_job_checkpoints.directory_name(2)
    jobs["resumed"] = {**fp16(HIGH), "resume_from": str(source)}
    jobs["fixed"] = fp16(Fp16Spec(loss_scale=1024.0), micro_batch_size=1)
    jobs["fp32"] = {"train": {**fp16(Fp16Spec())["train"], "precision": "fp32"}}
    jobs["too high"] = fp16(Fp16Spec(loss_scale=2.0**40), steps=IN_A_ROW + 1)
    smallest = Fp16Spec(initial_scale_power=40, min_loss_scale=2.0**39, hysteresis=1)
    jobs["at the smallest"] = fp16(smallest)
    return run_all(directory, text, 2, jobs, ends=("stage-3", "resumed"), asked=("begins",))


@pytest.mark.parametrize("stage", STAGES)
def test_overflows_are_skipped_and_the_schedule_waits(runs: Runs, stage: int) -> None:
    name = f"stage-{stage}"
    skips, scale = runs.of(name, "is_skipped"), initial_loss_scale(HIGH)
    assert skips[:3] == [True] * 3
    assert skips.count(False) >= 3
    assert runs.of(name, "skipped") == list(accumulate(skips))
    rates, done = runs.of("fp32", "learning_rate"), 0
    for step, skip in enumerate(skips):
        assert runs.of(name, "loss_scale")[step] == scale.cur_scale
        assert runs.of(name, "learning_rate")[step] == rates[done]
        scale, done = loss_scale_after(scale, overflow=skip), done + (not skip)


@pytest.mark.parametrize("stage", STAGES)
def test_stages_and_precisions_train_alike(runs: Runs, stage: int) -> None:
    """As far as they skip the same steps, which other roundings decide at the edge."""
    name = f"stage-{stage}"
    skips = runs.of(name, "is_skipped")
    pairs = zip(skips, runs.of("stage-0", "is_skipped"), strict=True)
    count = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert count >= 5
    wanted = pytest.approx(runs.losses("stage-0")[:count], rel=NEAR_FP32)
    assert runs.losses(name)[:count] == wanted
    first = runs.of(name, "grad_norm")[skips.index(False)]
    assert first == pytest.approx(runs.of("fp32", "grad_norm")[0], rel=0.3)
    assert runs.losses("fixed") == pytest.approx(runs.losses("fp32"), rel=NEAR_FP32)


def test_a_run_resumed_between_overflows_ends_bit_for_bit_alike(runs: Runs) -> None:
    for what in ("loss", "loss_scale", "skipped", "learning_rate"):
        assert runs.of("resumed", what) == runs.of("stage-3", what)[2:]
    assert runs.ended("resumed") == runs.ended("stage-3")
    saved, again = (
        find_job_checkpoints.verify_checkpoint_files(runs.checkpoint(name, STEPS)).loss_scale
        for name in ("stage-3", "resumed")
    )
    assert saved == again


def test_the_tools_read_the_scale(runs: Runs) -> None:
    path = runs.checkpoint("stage-3", 2)
    record, checkpoint = find_job_checkpoints.verify_checkpoint_files(path), formats.read(path)
    assert record.loss_scale is not None
    assert (record.skipped_steps, record.loss_scale.cur_scale) == (2, 2.0**20)
    state = formats.training_of(checkpoint)
    options = {
        "cur_iter": 2,
        "last_overflow_iter": 1,
        "cur_hysteresis": 1,
        "scale_window": 3,
        "min_scale": 1.0,
        "delayed_shift": 2,
        "consecutive_hysteresis": False,
    }
    assert (state.loss_scale, state.skipped) == (LossScale(2.0**20, True, options), 2)
    shown = training_to_json(summarize(checkpoint, state))
    assert shown["loss_scaler"] == {"cur_scale": 2.0**20, "dynamic": True, **options}
    assert (shown["skipped_steps"], shown["weights_dtype"]) == (2, "float16")


def test_the_scale_goes_along_to_deepspeed(runs: Runs, tmp_path: Path) -> None:
    source, out = runs.checkpoint("stage-3", 2), tmp_path / "out"
    conversion = convert.prepare_convert(source, out, "deepspeed", {"world_size": 2, "stage": 2})
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    before, written = (formats.training_of(formats.read(path)) for path in (source, out))
    assert (
        (written.skipped, written.precision) == (before.skipped, before.precision) == (2, FLOAT16)
    )
    assert before.loss_scale is not None
    assert written.loss_scale is not None
    assert written.loss_scale.scale == before.loss_scale.scale
    assert written.loss_scale.options.items() >= before.loss_scale.options.items()


def test_a_scale_that_never_fits_ends_the_run_with_the_weights_as_they_were(runs: Runs) -> None:
    for name, steps, why in (
        ("too high", IN_A_ROW - 1, "in 20 steps in a row at fp16.loss_scale = 1.09951e+12"),
        ("at the smallest", 1, "overflow at the smallest loss scale, 5.49756e+11"),
    ):
        report = runs.report[name]
        assert why in report["error"]
        assert runs.of(name, "is_skipped") == [True] * steps
        assert report["ended"] == report["begun"]


def test_the_step_in_the_log_says_the_scale(runs: Runs) -> None:
    log = (runs.directory.parent / "rank-0.log").read_text()
    assert f"step 1/{STEPS} skipped: gradients overflowed at loss scale 2.09715e+06 (1 " in log
    assert "scale 1024  " in log
