"""Notes on a checkpoint of another program: unknown values, and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.counts import counted
from zerotools.core.dtypes import BFLOAT16, FLOAT16
from zerotools.ops.foreign.check import FoundState, weights_of
from zerotools.ops.foreign.run import ForeignRun

OPTIONS_RESTORED = (
    "DeepSpeed restores the options of the param groups with their state: betas, eps and weight "
    "decay are those of the checkpoint"
)


@dataclass(frozen=True)
class JobOptimizer:
    """The job's hyperparameters; None if its optimizer lacks one. `decayed` are the
    parameters with `weight_decay`; the others have 0. `lr` is that of the next step, None while the
    number of steps is not known."""

    lr: float | None
    weight_decay: float
    decayed: frozenset[str]
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    momentum: float | None = None


def unknown(run: ForeignRun) -> Iterator[str]:
    """Yield the values that no file records of a run of another program."""
    yield (
        f"{run.path} is a checkpoint of another program ({run.title}) at step {run.step}; it does "
        "not record the order of the data: the job begins at the first sequence of its order, "
        "and may repeat data"
    )
    yield (
        "the random number state is not carried over: the job seeds it from seed and step "
        f"{run.step}"
    )


def differences(
    run: ForeignRun, state: FoundState, job: JobOptimizer, precision: str
) -> Iterator[str]:
    """Yield the differences of the checkpoint's optimizer and numbers from the job's, which
    count."""
    groups = run.training.groups
    rates = list(dict.fromkeys(g.options["lr"] for g in groups if _is_number(g.options.get("lr"))))
    followed = "" if run.training.lr_scheduler is None else ", and its scheduler is not followed"
    said = f": its last one was {_numbers(rates)}{followed}" if rates else ""
    now = "" if job.lr is None else f", {job.lr:g}"
    yield (
        f"the learning rate is that of the job's schedule after {counted(run.step, 'step')}"
        f"{now}{said}"
    )
    for option in ("betas", "eps", "momentum"):
        mine = getattr(job, option)
        theirs = [g.options[option] for g in groups if option in g.options]
        other = next((each for each in theirs if not _same(each, mine)), None)
        if mine is not None and other is not None:
            yield f"train.{option} is {_shown(mine)} and was {_shown(other)} in {run.path}"
    yield from _decay(run, job)
    if state.fresh:
        yield (
            f"{counted(len(state.fresh), 'parameter')} had no update yet and begin with empty "
            f"optimizer state, the first: {state.fresh[0]}"
        )
    yield from _precision(run, precision)


def _decay(run: ForeignRun, job: JobOptimizer) -> Iterator[str]:
    theirs = {
        name: float(group.options["weight_decay"])
        for group in run.training.groups
        if _is_number(group.options.get("weight_decay"))
        for name in group.params
    }
    mine = {name: job.weight_decay if name in job.decayed else 0.0 for name in theirs}
    other = [name for name in theirs if not _same(theirs[name], mine[name])]
    if other:
        first = other[0]
        yield (
            f"weight decay differs for {counted(len(other), 'parameter')}: {first} has "
            f"{mine[first]:g} and had {theirs[first]:g} in {run.path}"
        )


def _precision(run: ForeignRun, precision: str) -> Iterator[str]:
    exact = (run.checkpoint.tensors[key] for key in weights_of(run).values())
    halves = [tensor for tensor in exact if tensor.dtype in (BFLOAT16, FLOAT16)]
    if halves:
        yield (
            f"{counted(len(halves), 'weight')} of {run.path} are in 16 bits, without fp32 masters: "
            "the job's masters begin with these values"
        )
    there = run.training.precision
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    before = None if there is None else short.get(there.name)
    if before is not None and before != precision:
        yield f"train.precision is {precision}, and {run.path} was trained in {before}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(_same, one, other))
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= 1e-9 * max(abs(one), abs(other)))
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(values: Sequence[float]) -> str:
    return " and ".join(f"{value:g}" for value in values)


def _shown(value: Any) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, Sequence) else f"{value:g}"
