"""`[preemption]` of `zerotoolsd.toml`: whether jobs yield to those of higher priority."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """`[preemption]`: whether running jobs yield to jobs of higher priority; see [let urgent jobs
    go first](../how-to/preemption.md)."""

    enabled: bool = key(
        "Jobs that run save, stop and wait where a job of a higher priority needs what they have; "
        "they go on later, at no cost to their restarts.",
        default=False,
    )
    among: str = key(
        '`"all"`: whosever they are. `"own"`: only those of the user whose job waits.',
        default="all",
        allowed=("all", "own"),
    )
    after_seconds: float = key(
        "An attempt that has run for less than this is left alone.", default=60.0, minimum=0
    )
