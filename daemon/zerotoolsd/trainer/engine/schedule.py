"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zerotools.jobs.tables.train import TrainSpec


def learning_rate(train: TrainSpec, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    Linear from `learning_rate / warmup_steps` up to `learning_rate` over `warmup_steps` steps; then
    constant, or down to `min_learning_rate`, which the last of `steps` has: by half a cosine, in a
    straight line, or (wsd) in a straight line over the last `decay_steps`.
    """
    peak, floor, warmup = train.learning_rate, train.min_learning_rate, train.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if train.schedule == "constant":
        return peak
    last = train.total_steps - 1
    if train.schedule == "wsd":
        decay = decay_steps(train)
        return floor + (peak - floor) * min(1.0, max(0, last - step) / decay)
    done = min(1.0, (step - warmup) / max(1, last - warmup))
    left = 1.0 - done if train.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return floor + (peak - floor) * left


def decay_steps(train: TrainSpec) -> int:
    """How many of the last steps of a wsd schedule have less than the peak."""
    if train.decay_steps is not None:
        return train.decay_steps
    return min(max(1, train.total_steps // 10), max(1, train.total_steps - train.warmup_steps))


def schedule_of(train: TrainSpec) -> dict[str, Any]:
    """What the learning rate of each step follows from, as a job's record keeps it."""
    return {
        "name": train.schedule,
        "learning_rate": train.learning_rate,
        "min_learning_rate": train.min_learning_rate,
        "warmup_steps": train.warmup_steps,
        "steps": train.total_steps,
        **({"decay_steps": decay_steps(train)} if train.schedule == "wsd" else {}),
    }


def schedule_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What of a schedule is not as `before`, where that is known: `train.steps is 80, and was 60`.
    Of a constant rate the number of steps does not matter."""
    keys = {"name": "schedule"}
    same = {"steps"} if now["name"] == before.get("name") == "constant" else set()
    return ", ".join(
        f"train.{keys.get(name, name)} is {value}, and was {before[name]}"
        for name, value in now.items()
        if name in before and before[name] != value and name not in same
    )
