"""`[dpo]` of the job file: training on preferences, which say which of two answers is better."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class DpoSpec:
    """`[dpo]`: direct preference optimisation, for a job with `data.preferences`.

    The reference is the likelihood of each answer under the weights at the start. This likelihood
    is computed once, before the first step.
    """

    beta: float = key(
        "How strongly the model is kept close to the reference. The loss of a pair is `-log "
        "sigmoid(beta * (chosen - rejected))`, where `chosen` and `rejected` say how much the "
        "log-probability of each answer exceeds the reference.",
        default=0.1,
        stored_default=0.1,
        above=0,
    )
