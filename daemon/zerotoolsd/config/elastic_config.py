"""`[elastic]` of `zerotoolsd.toml`: when running elastic jobs take more GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """`[elastic]`: when jobs with a range of GPUs take more while they run; see
    [let a job take the GPUs that are free](../how-to/elastic-jobs.md)."""

    grow: bool = key(
        "Elastic jobs that run save and go on with more GPUs, or ranks of the CPU, where these are "
        "free and no job that waits can use them; false: a job keeps the size it started with.",
        default=True,
    )
    after_seconds: float = key(
        "An attempt that has run for less than this keeps its size.", default=300.0, minimum=0
    )
    gain: float = key(
        "A job grows where the time that this saves is at least so many times what the change "
        "costs.",
        default=5.0,
        minimum=1,
    )
    change_seconds: float = key(
        "What a change of size is taken to cost where no change of the job was measured yet.",
        default=60.0,
        minimum=0,
    )
