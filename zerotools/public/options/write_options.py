"""Options of whatever writes an output or moves tensor data."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from zerotools.ops.execution.workers import MemoryBudget
from zerotools.public.options.option import OUTPUT, RESOURCES, Option, Part, Size

MEMORY_HELP = "Memory for the buffers of all workers together."


class WorkersOption(TypedDict, total=False):
    """The number of threads."""

    workers: Annotated[
        int | None,
        Option(group=RESOURCES, help="Threads. Default: one per core, at most 8."),
    ]


class CheckingOptions(WorkersOption, total=False):
    """Threads and memory of commands that read tensor data and write none."""

    max_memory: Annotated[Size, Option(group=RESOURCES, default="256MiB", help=MEMORY_HELP)]


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
            help="Do part I of N alone; N runs, anywhere, together do all of it.",
        ),
    ]
    part_from: Annotated[
        Literal["slurm", "torchrun"] | None,
        Option(
            group=RESOURCES,
            help="Take I and N from the variables of Slurm (job arrays, srun) or of torchrun.",
        ),
    ]


def budget_of(given: Mapping[str, Any]) -> MemoryBudget:
    """Return the budget that the options `max_memory` and `workers` make."""
    workers = given["workers"]
    return (
        MemoryBudget(given["max_memory"])
        if workers is None
        else MemoryBudget(given["max_memory"], workers)
    )
