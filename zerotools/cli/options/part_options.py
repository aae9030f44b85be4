"""`--part I/N` and `--part-from`: which part of a piece of work a run does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

from zerotools.core.errors import BadRequest
from zerotools.ops.execution.parts.share import OutputPart

MOST = 1 << 20
LAUNCHERS = ("slurm", "torchrun")


class PartType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """`3/8`: the third of eight."""

    name = "I/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> OutputPart:
        if isinstance(value, OutputPart):
            return value
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(value))
        if found is None:
            self.fail(f"{value!r} is not a part; write 3/8 for the third of eight", param, ctx)
        index, of = int(found[1]), int(found[2])
        if not 1 <= of <= MOST or not 1 <= index <= of:
            self.fail(f"{value!r}: parts are counted from 1/{of} to {of}/{of}", param, ctx)
        return OutputPart(index, of)


def part_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add `--part` and `--part-from`; the command is given `part`, None without them."""

    @wraps(command)
    def collected(part: OutputPart | None, part_from: str | None, **given: Any) -> int | None:
        if part is not None and part_from is not None:
            raise BadRequest("--part and --part-from say the same thing; leave one of them out")
        if part_from is not None:
            part = part_of(part_from, os.environ)
        return command(**given, part=part)

    options = (
        click.option(
            "--part",
            type=PartType(),
            metavar="I/N",
            help="Do part I of N alone; N runs, anywhere, together do all of it.",
        ),
        click.option(
            "--part-from",
            type=click.Choice(LAUNCHERS),
            help="Take I and N from the variables of Slurm (job arrays, srun) or of torchrun.",
        ),
    )
    for option in reversed(options):
        option(collected)
    return collected


def part_of(launcher: str, environ: Mapping[str, str]) -> OutputPart:
    """The part of this process.

    Raises:
        BadRequest: the launcher did not start it, or its variables are not numbers.
    """
    if launcher == "torchrun":
        return _part(_number(environ, "RANK", launcher), _number(environ, "WORLD_SIZE", launcher))
    task, tasks = _of_array(environ)
    # A batch script has SLURM_NTASKS, too, and is started once: only srun starts so many.
    if "SLURM_STEP_NUM_TASKS" in environ:
        of = _number(environ, "SLURM_STEP_NUM_TASKS", launcher)
        return _part(task * of + _number(environ, "SLURM_PROCID", launcher), tasks * of)
    if tasks == 1 and "SLURM_ARRAY_TASK_ID" not in environ:
        raise BadRequest(
            "--part-from slurm: this is neither a task of a job array (SLURM_ARRAY_TASK_ID) nor of "
            "srun (SLURM_STEP_NUM_TASKS); start it by srun or with sbatch --array, or use --part"
        )
    return _part(task, tasks)


def _of_array(environ: Mapping[str, str]) -> tuple[int, int]:
    """Which task of a job array this is, counted from 0, and of how many."""
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return 0, 1
    task, least, most, tasks = (
        _number(environ, f"SLURM_ARRAY_TASK_{name}", "slurm")
        for name in ("ID", "MIN", "MAX", "COUNT")
    )
    step = _number(environ, "SLURM_ARRAY_TASK_STEP", "slurm", 1)
    if step < 1 or (most - least) // step + 1 != tasks or (task - least) % step:
        raise BadRequest(
            f"--part-from slurm: the array has {tasks} tasks from {least} to {most}, with gaps, so "
            "that their order is not known; use sbatch --array=1-N, or --part"
        )
    return (task - least) // step, tasks


def _number(
    environ: Mapping[str, str], name: str, launcher: str, default: int | None = None
) -> int:
    value = environ.get(name)
    if value is None and default is not None:
        return default
    if value is None or not re.fullmatch(r"\d{1,9}", value):
        said = "is not set" if value is None else f"is {value!r:.40}, which is no number"
        raise BadRequest(
            f"--part-from {launcher}: {name} {said}; start the command by {launcher}, or use --part"
        )
    return int(value)


def _part(index: int, of: int) -> OutputPart:
    if not 0 <= index < of <= MOST:
        raise BadRequest(f"task {index} of {of} is no part; use --part I/N")
    return OutputPart(index + 1, of)
