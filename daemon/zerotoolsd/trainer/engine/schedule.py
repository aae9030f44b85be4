"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

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
