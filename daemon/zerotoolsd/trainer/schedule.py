"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from zerotools.jobs.spec import TrainSpec


def learning_rate(train: TrainSpec, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    Linear from `learning_rate / warmup_steps` up to `learning_rate` over `warmup_steps` steps; then
    constant, or half a cosine that ends at `min_learning_rate` with the last of `steps`.
    """
    peak, floor, warmup = train.learning_rate, train.min_learning_rate, train.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if train.schedule == "constant":
        return peak
    last = train.steps - 1
    done = min(1.0, (step - warmup) / max(1, last - warmup))
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
