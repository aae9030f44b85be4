"""Computes the learning rate of each step, and the number of steps of a job that sets epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.train import OLD_FORM, TrainSpec, check_length
from zerotools.runs.training_record import JobRecord


def learning_rate(train: TrainSpec, step: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    `schedule_form` selects one of two sets of curves. "transformers" selects the curves of
    `transformers.get_scheduler` (transformers 5, `optimization.py`) for `linear`,
    `cosine_with_min_lr`, `constant_with_warmup` and `warmup_stable_decay`. The first step of a
    warm-up has the rate 0 (wsd: `min_learning_rate`), and a decay would reach `min_learning_rate`
    one step after the last step. With "zerotools-0.2", the first step of a warm-up has
    `learning_rate / warmup_steps`, a decay ends with `min_learning_rate` in the last step, and a
    wsd schedule decays linearly.
    """
    peak, floor, warmup = train.learning_rate, train.min_learning_rate, train.warmup_steps
    by_transformers = train.schedule_form == "transformers"
    if step < warmup:
        done = (step if by_transformers else step + 1) / warmup
        start = floor if by_transformers and train.schedule == "wsd" else 0.0
        return start + (peak - start) * done
    if train.schedule == "constant":
        return peak
    end = train.total_steps if by_transformers else train.total_steps - 1
    begin = end - decay_steps(train) if train.schedule == "wsd" else warmup
    done = min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
    straight = train.schedule == "linear" or (train.schedule == "wsd" and not by_transformers)
    left = 1.0 - done if straight else 0.5 * (1.0 + math.cos(math.pi * done))
    return floor + (peak - floor) * left


def decay_steps(train: TrainSpec) -> int:
    """Return the number of steps at the end of a wsd schedule that have a lower rate than the
    peak.
    """
    if train.decay_steps is not None:
        return train.decay_steps
    return min(max(1, train.total_steps // 10), max(1, train.total_steps - train.warmup_steps))


def schedule_of(train: TrainSpec) -> dict[str, Any]:
    """Return the settings that determine the learning rate of each step, for the record of a
    checkpoint."""
    return {
        "name": train.schedule,
        "learning_rate": train.learning_rate,
        "min_learning_rate": train.min_learning_rate,
        "warmup_steps": train.warmup_steps,
        "form": train.schedule_form,
        "steps": train.total_steps,
        **({"decay_steps": decay_steps(train)} if train.schedule == "wsd" else {}),
    }


def schedule_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the differences of two schedules as text, such as `train.steps is 80, and was 60`.

    If the learning rate is constant, the number of steps is not compared.
    """
    keys = {"name": "schedule", "form": "schedule_form"}
    before = {"form": OLD_FORM, **before} if before else before
    same = {"steps"} if now["name"] == before.get("name") == "constant" else set()
    return ", ".join(
        f"train.{keys.get(name, name)} is {value}, and was {before[name]}"
        for name, value in now.items()
        if name in before and before[name] != value and name not in same
    )


def with_steps(spec: JobSpec, sequences: int, saved: JobRecord | None = None) -> JobSpec:
    """Replace `train.epochs` and `train.warmup_ratio` in `spec` by numbers of steps, in
    `train.steps` and `train.warmup_steps`.

    `sequences` is the number of sequences in an epoch. A step may begin in one epoch and end in the
    next. So every step has `train.batch_size` sequences, and the last step may use sequences of a
    further epoch. `saved` is the record of the checkpoint from which the run continues: steps
    before this checkpoint may have had another batch size.

    Raises:
        BadRequest: the warm-up or the decay has more steps than the run.
    """
    train = spec.train
    if train.epochs is None and not train.warmup_ratio:
        return spec
    steps = train.steps
    if train.epochs is not None:
        wanted = train.epochs * sequences
        steps = math.ceil(wanted / train.batch_size)
        # After steps of another program, `consumed_sequences` does not count from the first step.
        if saved is not None and saved.made_from is None and saved.steps_total != steps:
            left = max(0.0, wanted - saved.consumed_sequences)
            steps = saved.step + math.ceil(left / train.batch_size)
    counted = replace(train, steps=steps, epochs=None, warmup_ratio=0.0)
    if train.warmup_ratio:
        warmup = math.ceil(train.warmup_ratio * counted.total_steps)
        counted = replace(counted, warmup_steps=warmup)
    for problem in check_length(counted):
        raise BadRequest(problem + _counted_from(spec, sequences))
    return replace(spec, train=counted)


def _counted_from(spec: JobSpec, sequences: int) -> str:
    train = spec.train
    if train.epochs is None:
        return ""
    return (
        f" ({train.epochs:g} epochs of {sequences} sequences, "
        f"train.batch_size = {train.batch_size})"
    )
