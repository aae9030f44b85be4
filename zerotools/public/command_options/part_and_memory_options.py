"""Options of commands that write an output: limits for memory and threads, and the part of the work
that this process does."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from zerotools.core.errors import BadRequest
from zerotools.ops.execution.output_part import MOST_PARTS, OutputPart, parse_part
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    RESOURCES,
    Option,
    Part,
    Size,
)
from zerotools.public.command_options.read_options import MEMORY_HELP, WorkersOption

LAUNCHERS = ("slurm", "torchrun")


def chosen_part(given: Mapping[str, Any]) -> OutputPart | None:
    """Return the part of the files that this process writes or checks; None if neither `part` nor
    `part_from` was given.

    `part` names the part. `part_from` names the launcher that gave this process its rank.

    Raises:
        BadRequest: both options were given, or the launcher did not start this process.
    """
    part, launcher = given["part"], given["part_from"]
    if launcher is None:
        return parse_part(part) if part is not None else None
    if part is not None:
        raise BadRequest("--part and --part-from set the same thing; leave one of them out")
    return part_of(launcher, os.environ)


def part_of(launcher: str, environ: Mapping[str, str]) -> OutputPart:
    """Return the part of the files that this process writes or checks, according to the environment
    variables of its launcher.

    Raises:
        BadRequest: the launcher did not start this process, or a variable is not a number.
    """
    if launcher == "torchrun":
        return _part(_number(environ, "RANK", launcher), _number(environ, "WORLD_SIZE", launcher))
    task, tasks = _of_array(environ)
    # A batch script also has SLURM_NTASKS, but runs once. Only srun starts this many processes.
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
    """Return the index of this task in its job array, from 0, and the number of tasks."""
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
            "their order is not known; use sbatch --array=1-N, or --part"
        )
    return (task - least) // step, tasks


def _number(
    environ: Mapping[str, str], name: str, launcher: str, default: int | None = None
) -> int:
    value = environ.get(name)
    if value is None and default is not None:
        return default
    if value is None or not re.fullmatch(r"\d{1,9}", value):
        said = "is not set" if value is None else f"is {value!r:.40}, which is not a number"
        raise BadRequest(
            f"--part-from {launcher}: {name} {said}; start the command by {launcher}, or use --part"
        )
    return int(value)


def _part(index: int, of: int) -> OutputPart:
    if not 0 <= index < of <= MOST_PARTS:
        raise BadRequest(f"task {index} of {of} is not a valid part; use --part I/N")
    return OutputPart(index + 1, of)


class WritingOptions(WorkersOption, total=False):
    """Options of a command that writes an output."""

    max_memory: Annotated[Size, Option(group=RESOURCES, default="1GiB", help=MEMORY_HELP)]
    dry_run: Annotated[bool, Option(group=OUTPUT, help="Show the plan, and write nothing.")]
    verify: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Check the source, read the output back, compare, and record its digests.",
        ),
    ]
    resume: Annotated[
        bool, Option(group=OUTPUT, help="Continue an interrupted run of the same command.")
    ]
    overwrite: Annotated[bool, Option(group=OUTPUT, help="Replace an existing output.")]


class PartOptions(TypedDict, total=False):
    """Options that choose the part of the work that this process does."""

    part: Annotated[
        Part | None,
        Option(
            group=RESOURCES,
            metavar="I/N",
            help="Do only part I of N. N runs, on any machines, do the whole work together.",
        ),
    ]
    part_from: Annotated[
        Literal["slurm", "torchrun"] | None,
        Option(
            group=RESOURCES,
            help="Take I and N of --part from the variables of Slurm (job arrays, srun) or of "
            "torchrun.",
        ),
    ]


def budget_of(given: Mapping[str, Any]) -> MemoryBudget:
    """Return the limits that the options `max_memory` and `workers` set."""
    workers = given["workers"]
    return (
        MemoryBudget(given["max_memory"])
        if workers is None
        else MemoryBudget(given["max_memory"], workers)
    )
