"""`[preemption]` of `zerotoolsd.toml`: whether jobs yield to those of higher priority."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """`[preemption]`: whether running jobs yield to jobs of higher priority; see [let urgent jobs
    go first](../how-to/preemption.md)."""

    enabled: bool = key(
        "Running jobs save, stop and wait if a job of a higher priority needs their GPUs or "
        "memory. They continue later, and this does not count as a restart.",
        default=False,
    )
    among: str = key(
        '`"all"`: the jobs of every user. `"own"`: only jobs of the same user as the waiting job.',
        default="all",
        allowed=("all", "own"),
    )
    after_seconds: float = key(
        "An attempt runs at least this long before it may be stopped.", default=60.0, minimum=0
    )
