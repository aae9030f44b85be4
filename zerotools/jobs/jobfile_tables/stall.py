"""`[stall]` of the job file: what the supervisor does if ranks make no progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of

ACTIONS = ("end", "report", "off")
NEVER = "never"
DEADLINES = {"start": 7200, "data": 7200, "step": 600, "evaluation": 1800, "save": 7200}
"""The default time limits of zerotools' trainer, in seconds.

For a user's script, only the limits in its job file are used.
"""
_SPAN = 'seconds, text such as `"2h"`, or `"never"`'


@dataclass(frozen=True, kw_only=True)
class StallSpec:
    """`[stall]`: the action if the ranks make no progress. Each time counts from the last progress;
    see [stalled jobs](../explanation/stalled-jobs.md)."""

    action: str = key(
        '`"end"`: the stacks of all ranks are written to the log, and the attempt ends like '
        'after a crash. `"report"`: the stacks are written, and the job is shown as stalled. '
        '`"off"`: no reaction.',
        default="end",
        stored_default="off",
        allowed=ACTIONS,
    )
    start_limit: int | str | None = key(
        "Longest time without progress before the first step (import, meeting of the ranks, "
        f'compilation, weights), and at the end: {_SPAN}. Default: `"2h"`; a script: never.',
        default=None,
        stored_default=None,
    )
    data_limit: int | str | None = key(
        'Longest time without progress while the data is read. Default: `"2h"`; a script: never.',
        default=None,
        stored_default=None,
    )
    step_limit: int | str | None = key(
        'Longest time for one step; `step_factor` may allow more. Default: `"10m"`; a script: '
        "never.",
        default=None,
        stored_default=None,
    )
    step_factor: float = key(
        "A step may always take up to this many times the median time of the last 50 steps, even "
        "longer than `step_limit`.",
        default=120.0,
        stored_default=120.0,
        minimum=1,
    )
    evaluation_limit: int | str | None = key(
        'Longest time for each batch of an evaluation. Default: `"30m"`; a script: never.',
        default=None,
        stored_default=None,
    )
    save_limit: int | str | None = key(
        'Longest time without progress while a checkpoint is written. Default: `"2h"`; a script: '
        "never.",
        default=None,
        stored_default=None,
    )
    silence_limit: int | str | None = key(
        f"Longest time without a report or output of any rank: {_SPAN}. Default: never.",
        default=None,
        stored_default=None,
    )


def stall_limits(stall: StallSpec) -> dict[str, int | str | None]:
    """Return the value of each time limit as it is written in the job file."""
    return {
        "start": stall.start_limit,
        "data": stall.data_limit,
        "step": stall.step_limit,
        "evaluation": stall.evaluation_limit,
        "save": stall.save_limit,
        "silence": stall.silence_limit,
    }


def check_stall(stall: StallSpec) -> Iterator[str]:
    """Yield the problems in `[stall]`."""
    for name, value in stall_limits(stall).items():
        if value is None or value == NEVER:
            continue
        try:
            seconds_of(value)
        except ValueError as error:
            yield f'stall.{name}_limit = {format_value(value)}: {error}, or "never"'


def limits_of(stall: StallSpec, *, own_program: bool) -> dict[str, Any]:
    """Return the supervisor's settings: the keys `action` and `step_factor` of the job file, and
    the time limits in seconds (None: no limit). `own_program` is true for a user's script."""
    usual: dict[str, int] = {} if own_program else DEADLINES
    found = {name: usual.get(name) if v is None else v for name, v in stall_limits(stall).items()}
    seconds = {n: None if v is None or v == NEVER else seconds_of(v) for n, v in found.items()}
    return {"action": stall.action, "factor": stall.step_factor, **seconds}
