"""What the keys about saving and stopping demand of one another."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.binding.bind import show
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.tables.spec import JobSpec


def check_time_limit(spec: JobSpec) -> Iterator[str]:
    """What is wrong with `time_limit`, which every engine has."""
    if spec.time_limit is not None:
        try:
            seconds_of(spec.time_limit)
        except ValueError as error:
            yield f"time_limit = {show(spec.time_limit)}: {error}"


def check_checkpoints(spec: JobSpec) -> Iterator[str]:
    """What is wrong with `[checkpoint]`."""
    wanted = spec.checkpoint
    if wanted.asynchronous and spec.engine != "torch":
        yield (
            f'checkpoint.asynchronous = true: has no place in an engine = "{spec.engine}" job, '
            "which writes its checkpoints itself; leave it out"
        )
    if wanted.asynchronous and spec.offload.optimizer == "disk":
        yield (
            "checkpoint.asynchronous = true: would copy to host memory what offload.optimizer = "
            '"disk" keeps out of it; leave one of them out'
        )
    if wanted.export_on_finish is not None and spec.engine == "script":
        yield (
            f'checkpoint.export_on_finish = "{wanted.export_on_finish}": has no place in an '
            'engine = "script" job, whose checkpoints only its program knows; use '
            "`zerotools consolidate`"
        )
    if wanted.best == "eval_loss":
        yield from _check_evaluated(spec)
    if wanted.keep_every is not None:
        yield from _check_keep_every(wanted.keep_every, wanted.every, wanted.keep_last)


def _check_keep_every(keep_every: int, every: int | None, keep_last: int | None) -> Iterator[str]:
    if keep_last is None:
        yield (
            f"checkpoint.keep_every = {keep_every}: all checkpoints are kept without "
            "checkpoint.keep_last; set that too, or leave this out"
        )
    if every is None:
        yield (
            f"checkpoint.keep_every = {keep_every}: needs checkpoint.every, of which it is a "
            "multiple"
        )
    elif keep_every % every:
        yield (
            f"checkpoint.keep_every = {keep_every}: must be a multiple of checkpoint.every, "
            f"which is {every}"
        )


def _check_evaluated(spec: JobSpec) -> Iterator[str]:
    every, evaluated = spec.checkpoint.every, spec.eval.every
    if not spec.eval.files and not spec.eval.fraction:
        yield 'checkpoint.best = "eval_loss": needs [eval] with files or a fraction'
    elif every is not None and (evaluated is None or every % evaluated):
        yield (
            f'checkpoint.best = "eval_loss": checkpoint.every, which is {every}, must be a '
            f"multiple of eval.every, which is {'not set' if evaluated is None else evaluated}"
        )
