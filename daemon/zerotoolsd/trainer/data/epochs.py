"""The number of steps of a job that says how often the data is gone through."""

from __future__ import annotations

import math
from dataclasses import replace

from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.tables.train import check_length


def with_steps(spec: JobSpec, sequences: int) -> JobSpec:
    """`spec` with `train.steps` in place of `train.epochs`; the data has so many `sequences`.

    Steps take their sequences one after the other through all epochs, so none is shorter than
    `train.batch_size`: the last one goes on into the epoch after.

    Raises:
        BadRequest: the warm-up or the decay does not fit into the steps.
    """
    train = spec.train
    if train.epochs is None:
        return spec
    steps = math.ceil(train.epochs * sequences / train.batch_size)
    counted = replace(train, steps=steps, epochs=None)
    for problem in check_length(counted):
        raise BadRequest(
            f"{problem} ({train.epochs:g} epochs of {sequences} sequences, "
            f"train.batch_size = {train.batch_size})"
        )
    return replace(spec, train=counted)
