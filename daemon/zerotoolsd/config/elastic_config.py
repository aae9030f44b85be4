"""`[elastic]` of `zerotoolsd.toml`: when running elastic jobs take more GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """`[elastic]`: when jobs with a range of GPUs take more while they run; see
    [let a job take the GPUs that are free](../how-to/elastic-jobs.md)."""

    grow: bool = key(
        "Running elastic jobs save and continue with more GPUs, or CPU ranks, if these are "
        "free and no queued job can use them. false: a job keeps the size with which it "
        "started.",
        default=True,
    )
    after_seconds: float = key(
        "An attempt keeps its size at least this long.", default=300.0, minimum=0
    )
    gain: float = key(
        "A job grows if the saved time is at least this many times the cost of the change.",
        default=5.0,
        minimum=1,
    )
    change_seconds: float = key(
        "Assumed cost of a change of size, before a change of the job was measured.",
        default=60.0,
        minimum=0,
    )
