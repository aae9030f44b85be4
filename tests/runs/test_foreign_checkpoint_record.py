"""The record of a checkpoint that another program saved."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.dtypes import FLOAT16
from zerotools.core.training_state import LossScale, ParamGroup, TrainingState
from zerotools.runs.foreign_checkpoint_record import foreign_record
from zerotools.runs.training_record import JobRecord, ModelRecord, read_record, write_record

ADAM = {"lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1, "fused": None}
SCALER = LossScale(128.0, True, {"cur_iter": 4, "scale_window": 2, "cur_hysteresis": 2})


def made(**training: object) -> JobRecord:
    return foreign_record(
        TrainingState(groups=(ParamGroup(("a", "b"), ADAM),), skipped=1, **training),  # type: ignore[arg-type]
        optimizer="adamw",
        step=7,
        world_size=2,
        stage=3,
        model=ModelRecord(10, 0),
        made_from="DeepSpeed ZeRO",
    )


def test_what_is_known_is_kept_and_read_again(tmp_path: Path) -> None:
    record = made(precision=FLOAT16, loss_scaler=SCALER)
    write_record(tmp_path, record)
    again = read_record(tmp_path)
    assert again == record
    [group] = again.optimizer.groups
    assert (group.lr, group.betas, group.weight_decay, group.params) == (
        *(1e-3, (0.9, 0.99)),
        *(0.1, ("a", "b")),
    )
    assert (again.step, again.skipped_steps, again.precision) == (7, 1, "fp16")
    assert again.loss_scale is not None
    assert (again.loss_scale.cur_scale, again.loss_scale.cur_hysteresis) == (128.0, 2)
    assert again.made_from == "DeepSpeed ZeRO"


def test_a_record_of_a_job_says_nothing_of_another_program(tmp_path: Path) -> None:
    write_record(tmp_path, made())
    assert "made_from" in (tmp_path / "job.json").read_text()
    assert made().precision == "fp32"
    static = made(loss_scaler=LossScale(64.0, False)).loss_scale
    assert static is not None
    assert not static.dynamic
