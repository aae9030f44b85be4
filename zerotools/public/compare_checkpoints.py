"""Compare two checkpoints."""

from __future__ import annotations

from typing import Annotated, TypedDict, Unpack

from zerotools.io.files.source_stamps import recording
from zerotools.io.stores.addresses import path_of
from zerotools.ops.comparison import checkpoint_diff
from zerotools.ops.comparison.diff_result import CheckpointDiff
from zerotools.public.command_options.option import (
    NAMES,
    WHAT,
    Option,
    PathOption,
    StrPath,
    Words,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.read_options import ReadingOptions
from zerotools.public.progress import ProgressWanted, metering


class ComparedOptions(TypedDict, total=False):
    """Options that select the tensors, and the allowed difference of their values."""

    role: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="ROLE",
            help="Compare only tensors of this role (param, exp_avg, ...), and not the run; may be "
            "repeated.",
        ),
    ]
    include: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="GLOB",
            help="Compare only tensors with matching names, and not the run; may be repeated.",
        ),
    ]
    tolerance: Annotated[
        str | None,
        Option(
            group=WHAT,
            metavar="bits|cast|ulp=N|abs=X,rel=Y",
            help="How far apart values may be: not at all, after a cast to the narrower type, N "
            "steps of the type, or X + Y times the value in A.  [default: bits; with --adapter a "
            "step of A's type]",
        ),
    ]
    adapter: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="DIR",
            help="Add this PEFT adapter to B, a base model, and compare A, a merged one, with the "
            "sum.",
        ),
    ]
    rename: Annotated[
        Words,
        Option(
            group=NAMES,
            metavar="REGEX=REPL",
            help="Change names of A, or of B if none of A matches; may be repeated.",
        ),
    ]


class DiffKeywords(ComparedOptions, ReadingOptions, total=False):
    """The options of `zerotools diff`."""


@takes_options(DiffKeywords)
def diff(
    a: StrPath, b: StrPath, *, progress: ProgressWanted = None, **options: Unpack[DiffKeywords]
) -> CheckpointDiff:
    """Compare two checkpoints of any format, stage and number of ranks; neither is merged.

    The tensors and the metadata of the run are compared. The differences are in `is_equal`,
    `tensors`, `run` and `worst(most)` of the result.

    Raises:
        BadRequest: a path does not exist, an option is wrong, or the options leave no tensors.
        BadFile: a path is not a checkpoint, its metadata is damaged, or it changed during the
            comparison. Unreadable tensors are in the result instead.
        Unsupported: the format of one checkpoint cannot be read.
    """
    given = bind_options(DiffKeywords, options)
    asked = checkpoint_diff.DiffOptions(roles=given.pop("role"), **given)
    with recording(), metering(progress) as meter:
        prepared = checkpoint_diff.prepare_diff(path_of(a), path_of(b), asked)
        with meter(prepared.bytes, "diff") as on_bytes:
            return checkpoint_diff.carry_out_diff(prepared, on_bytes=on_bytes)
