"""Create the job record of a checkpoint that another program saved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerotools.core.training_state import LossScale, TrainingState
from zerotools.runs.training_record import (
    JobRecord,
    LossScaleRecord,
    ModelRecord,
    OptimizerGroup,
    OptimizerRecord,
)

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def foreign_record(
    training: TrainingState,
    *,
    optimizer: str,
    step: int,
    world_size: int,
    stage: int,
    model: ModelRecord,
    made_from: str,
    replicated: Iterable[str] = (),
) -> JobRecord:
    """Return a job record for a checkpoint that another program saved after `step` steps.

    Unknown values (seed, position in the data, batch size, sequence length, schedule) get their
    smallest possible value. Readers of the record recognise by `made_from` that these values are
    unknown.
    """
    precision = "fp32" if training.precision is None else training.precision.name
    return JobRecord(
        step=step,
        steps_total=step,
        world_size=world_size,
        stage=stage,
        precision=_PRECISIONS.get(precision, "fp32"),
        seed=0,
        consumed_sequences=0,
        batch_size=1,
        sequence_length=1,
        optimizer=OptimizerRecord(
            optimizer,
            tuple(
                OptimizerGroup(
                    lr=_number(group.options.get("lr")),
                    weight_decay=_number(group.options.get("weight_decay")),
                    betas=_betas(group.options.get("betas")),
                    eps=_optional(group.options.get("eps")),
                    momentum=_optional(group.options.get("momentum")),
                    params=group.params,
                )
                for group in training.groups
            ),
        ),
        model=model,
        replicated=tuple(replicated),
        skipped_steps=training.skipped or 0,
        loss_scale=None if training.loss_scale is None else _loss_scale(training.loss_scale),
        made_from=made_from,
    )


def _number(value: Any) -> float:
    return _optional(value) or 0.0


def _optional(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _betas(value: Any) -> tuple[float, float] | None:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple | list) else None


def _loss_scale(scaler: LossScale) -> LossScaleRecord:
    if not scaler.dynamic:
        return LossScaleRecord(cur_scale=scaler.scale, dynamic=False)
    known = {name: int(value) for name, value in scaler.options.items() if type(value) is int}
    return LossScaleRecord(
        cur_scale=scaler.scale,
        dynamic=True,
        cur_iter=known.get("cur_iter", 0),
        last_overflow_iter=known.get("last_overflow_iter", -1),
        cur_hysteresis=known.get("cur_hysteresis", 1),
        scale_window=known.get("scale_window", 1000),
        delayed_shift=known.get("delayed_shift", 1),
    )
