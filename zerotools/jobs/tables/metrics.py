"""`[metrics]`: what a run writes down at every step."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

TENSORBOARD = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True)
class MetricsSpec:
    """`[metrics]`: what is written into `output_dir` at every step; see
    [metrics and plots](../how-to/metrics-and-plots.md)."""

    jsonl: bool = key("`metrics.jsonl`, one JSON object per step and per evaluation.", default=True)
    tensorboard: str = key(
        "Event files in `tensorboard/`; `auto`: where TensorBoard is installed for the job's "
        "`python`.",
        default="auto",
        allowed=TENSORBOARD,
    )
