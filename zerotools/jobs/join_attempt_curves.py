"""Join the step reports of a job's attempts to curves.

After a restart, an attempt repeats the steps that the previous attempt made after its last
checkpoint. From the first step of the new attempt on, its reports replace the old ones:

    attempt 1   1 2 3 4 5 6 7        crashed; its last checkpoint is of step 4
    attempt 2           5 6 7 8 9
    joined      1 2 3 4 5'6'7'8'9'   5 to 9 as attempt 2 reported them
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

CurvePoints = dict[int, float]
"""Step -> value at this step."""

REWARDS = ("reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy")
"""The values, in addition to the loss, in step reports of DPO training."""
OF_STEPS: Mapping[str, str] = {
    "loss": "loss",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "tokens_per_second": "tokens_per_second",
    **{name: name for name in REWARDS},
    "host_bytes": "rss_bytes",
    "gpu_bytes": "gpu_peak_bytes",
    "time": "time",
}
"""Field of `Curves` -> key in a step report."""
OF_EVALUATIONS: Mapping[str, str] = {
    "eval_loss": "loss",
    "perplexity": "perplexity",
    "rouge1": "rouge1",
    "rouge2": "rouge2",
    "rougeL": "rougeL",
    "bleu": "bleu",
    "eval_reward_margin": "reward_margin",
    "eval_reward_accuracy": "reward_accuracy",
    "eval_time": "time",
}
"""Field of `Curves` -> key in an evaluation report."""
NO_SCORES = frozenset(
    {
        *("event", "phase", "rank", "step", "steps", "time", "clock", "seconds", "sequences"),
        *("tokens", "rss_bytes", "gpu_peak_bytes", "predicted", "predicted_seconds"),
        *OF_EVALUATIONS.values(),
        *REWARDS,
    }
)
"""Keys in an evaluation report that are not scores. Every other key with a number is a score."""
MOST_SCORES = 200
"""The largest number of score names that are kept for a job.

A program may report any number of names.
"""


@dataclass(frozen=True)
class Curves:
    """The reports of rank 0 as curves: each field maps a step to a value.

    `host_bytes` is the memory of the rank's process, and `gpu_bytes` is the memory of its GPU.
    Times are in seconds since 1970. `not_finite` has the steps and evaluations with a loss of NaN
    or infinity. `scores` has the curves of evaluation scores that are not a field of this class,
    keyed by name, such as `hellaswag/acc`.
    """

    loss: CurvePoints = field(default_factory=dict)
    eval_loss: CurvePoints = field(default_factory=dict)
    host_bytes: CurvePoints = field(default_factory=dict)
    gpu_bytes: CurvePoints = field(default_factory=dict)
    lr: CurvePoints = field(default_factory=dict)
    grad_norm: CurvePoints = field(default_factory=dict)
    tokens_per_second: CurvePoints = field(default_factory=dict)
    time: CurvePoints = field(default_factory=dict)
    perplexity: CurvePoints = field(default_factory=dict)
    rouge1: CurvePoints = field(default_factory=dict)
    rouge2: CurvePoints = field(default_factory=dict)
    rougeL: CurvePoints = field(default_factory=dict)
    bleu: CurvePoints = field(default_factory=dict)
    reward_chosen: CurvePoints = field(default_factory=dict)
    reward_rejected: CurvePoints = field(default_factory=dict)
    reward_margin: CurvePoints = field(default_factory=dict)
    reward_accuracy: CurvePoints = field(default_factory=dict)
    eval_reward_margin: CurvePoints = field(default_factory=dict)
    eval_reward_accuracy: CurvePoints = field(default_factory=dict)
    eval_time: CurvePoints = field(default_factory=dict)
    not_finite: CurvePoints = field(default_factory=dict)
    scores: dict[str, CurvePoints] = field(default_factory=dict)
    score_time: CurvePoints = field(default_factory=dict)

    def add_reports(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the reports of one attempt.

        If earlier attempts reported the first step of this attempt or later steps, those reports
        are removed.
        """
        told = [each for each in records if each.get("event") in ("step", "eval")]
        known = (step for each in told if (step := step_of(each)) is not None)
        first = min(known, default=None)
        own = (getattr(self, each.name) for each in fields(self) if each.name != "scores")
        for points in (*own, *self.scores.values()):
            for step in [step for step in points if first is not None and step >= first]:
                del points[step]
        for record in told:
            self._add(record)

    def add_scores(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the scores that another job, an evaluation job, computed for this job's
        checkpoints.
        """
        for record in records:
            if record.get("event") == "eval" and (step := step_of(record)) is not None:
                self._add_scores(step, record)

    def _add_scores(self, step: int, record: Mapping[str, Any]) -> None:
        for name, value in scores_in(record).items():
            if name in self.scores or len(self.scores) < MOST_SCORES:
                self.scores.setdefault(name, {})[step] = value
                if (time := finite_number(record.get("time"))) is not None:
                    self.score_time[step] = time

    def _add(self, record: Mapping[str, Any]) -> None:
        step = step_of(record)
        if step is None:
            return
        for name, key in (OF_STEPS if record["event"] == "step" else OF_EVALUATIONS).items():
            if (value := finite_number(record.get(key))) is not None:
                getattr(self, name)[step] = value
        if record["event"] == "eval":
            self._add_scores(step, record)
        loss = record.get("loss", 0.0)
        if loss is None:  # JSON has no NaN
            loss = math.nan
        if isinstance(loss, float) and not math.isfinite(loss):
            self.not_finite[step] = loss


def scores_in(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in an evaluation report that are not a field of `Curves`, keyed by name."""
    numbers = (
        (name, finite_number(value)) for name, value in record.items() if name not in NO_SCORES
    )
    return {name: value for name, value in numbers if value is not None}


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step number in a report; None if the report has no valid step."""
    step = record.get("step")
    return step if type(step) is int and 0 <= step < 2**63 else None


def finite_number(value: object) -> float | None:
    """Return `value` as a number if it is finite, else None.

    The reports of a job may contain values of any type.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    is_number = abs(value) <= sys.float_info.max and math.isfinite(value)
    return float(value) if is_number else None


def output_dirs_of(resume_from: str) -> frozenset[str]:
    """Return the directories that may be the output directory of the job that wrote the checkpoint
    `resume_from`: its path and all parents of this path.
    """
    path = Path(resume_from)
    return frozenset(map(str, (path, *path.parents)))
