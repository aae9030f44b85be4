"""What in a job file makes a job need less GPU memory: for whoever has run out of it.

Ordered by what costs the least time; how much each saves is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.spec import JobSpec


def settings_to_try(spec: JobSpec, *, most: int = 2) -> list[str]:
    """Up to `most` settings that need less GPU memory than `spec`, as lines of a job file."""
    return [line for line, _ in zip(_lines(spec), range(most), strict=False)]


def _lines(spec: JobSpec) -> Iterator[str]:
    train = spec.train
    share = train.batch_size // spec.world_size
    micro = train.micro_batch_size or share
    if micro > 1:
        smaller = max(size for size in range(1, micro) if share % size == 0)
        yield f"train.micro_batch_size = {smaller} (it is {micro} now; batch_size stays)"
    if not train.activation_checkpointing:
        yield "train.activation_checkpointing = true"
    if spec.world_size > 1 and spec.zero.stage < 3:
        yield f"zero.stage = {spec.zero.stage + 1} (it is {spec.zero.stage} now)"
    if train.precision == "fp32":
        yield 'train.precision = "bf16"'
    if spec.world_size > 1:
        yield "more GPUs"
    yield "a shorter data.sequence_length"
