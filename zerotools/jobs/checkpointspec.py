"""`[checkpoint]` of the job file: when checkpoints are written, and which of them stay."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.schema import key

BEST = ("loss",)


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """`[checkpoint]`: when sharded checkpoints are written. One is always written at the end."""

    every: int | None = key(
        "Steps between checkpoints; default: only at the end and at a stop.", default=None, least=1
    )
    asynchronous: bool = key(
        "Training waits only while each rank copies its shards to host memory, and goes on while "
        "they are written. Takes as much host memory as the checkpoint is large, over all ranks.",
        default=False,
    )
    keep_last: int | None = key(
        "Older checkpoints of this job are deleted; default: all are kept.", default=None, least=1
    )
    keep_every: int | None = key(
        "Checkpoints of every so many steps stay, whatever `keep_last` says. A multiple of "
        "`every`.",
        default=None,
        least=1,
    )
    best: str | None = key(
        'The checkpoint with the smallest one stays too, and the file `best` names it: `"loss"`, '
        "the mean training loss since the checkpoint before.",
        default=None,
        allowed=BEST,
    )
