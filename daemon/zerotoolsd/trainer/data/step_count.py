"""The number of steps of a job that sets epochs, and of its warm-up."""

from __future__ import annotations

import math
from dataclasses import replace

from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.tables.train import check_length


def with_steps(spec: JobSpec, sequences: int) -> JobSpec:
    """Return `spec` with `train.steps` instead of `train.epochs`, and `train.warmup_steps` instead
    of `train.warmup_ratio`, for data with so many `sequences`.

    Steps take their sequences one after the other through all epochs, so none is shorter than
    `train.batch_size`: the last one continues into the next epoch.

    Raises:
        BadRequest: the warm-up or the decay does not fit into the steps.
    """
    train = spec.train
    if train.epochs is None and not train.warmup_ratio:
        return spec
    steps = train.steps
    if train.epochs is not None:
        steps = math.ceil(train.epochs * sequences / train.batch_size)
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
