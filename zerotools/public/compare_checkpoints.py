"""Compare two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, TypedDict, Unpack

from zerotools.core.errors import BadRequest
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.comparison import checkpoint_diff
from zerotools.ops.comparison.diff_result import CheckpointDiff
from zerotools.public.command_options.declare_and_bind_options import (
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
    """Options that select the tensors and set the allowed differences of their values."""

    role: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="ROLE",
            help="Compare only tensors of this role (param, exp_avg, ...), and nothing else of "
            "the run; may be repeated.",
        ),
    ]
    include: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="GLOB",
            help="Compare only tensors with matching names, and nothing else of the run; may be "
            "repeated.",
        ),
    ]
    tolerance: Annotated[
        str | None,
        Option(
            group=WHAT,
            metavar="bits|cast|ulp=N|abs=X,rel=Y",
            help="Allowed difference of two values: none (bits), none after a cast to the "
            "narrower dtype (cast), N units in the last place (ulp=N), or X + Y times the "
            "value in A.  [default: bits; with --adapter one unit of A's dtype]",
        ),
    ]
    adapter: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="DIR",
            help="Add the PEFT adapter in DIR to the base model B, and compare the merged model "
            "A with the sum.",
        ),
    ]
    changes: Annotated[
        bool,
        Option(
            group=WHAT,
            help="Measure equal tensors too, and show the change of each layer.",
        ),
    ]
    rename: Annotated[
        Words,
        Option(
            group=NAMES,
            metavar="REGEX=REPL",
            help="Rename the tensors of A; if no name in A matches, rename those of B. May be "
            "repeated.",
        ),
    ]


class DiffKeywords(ComparedOptions, ReadingOptions, total=False):
    """The options of `zerotools diff`."""


@dataclass(frozen=True)
class DiffResult(CheckpointDiff):
    """The result of `diff`."""

    def to_html(self) -> str:
        """Return a page for browsers that draws the change of each layer, the tensors with the
        largest changes, and the tensors that only one checkpoint has. The page is one file, and
        needs no network.

        Raises:
            BadRequest: `diff` was called without `changes`.
        """
        return SeriesDiff((self,)).to_html()


@takes_options(DiffKeywords)
def diff(
    a: StrPath, b: StrPath, *, progress: ProgressWanted = None, **options: Unpack[DiffKeywords]
) -> DiffResult:
    """Compare two checkpoints, each of any format, ZeRO stage and number of ranks. Neither is
    consolidated first.

    The tensors and the training values, such as steps and param groups, are compared. `is_equal`,
    `tensors`, `run` and `worst(most)` of the result have the differences.

    Raises:
        BadRequest: a path does not exist, an option is wrong, or the options select no tensors.
        BadFile: a path is not a checkpoint, its metadata is damaged, or it changed during the
            comparison. A tensor that cannot be read is not an error, but is in the result.
        Unsupported: the format of a checkpoint cannot be read.
    """
    given = bind_options(DiffKeywords, options)
    asked = checkpoint_diff.DiffOptions(roles=given.pop("role"), **given)
    with recording_sources(), metering(progress) as meter:
        prepared = checkpoint_diff.prepare_diff(path_of(a), path_of(b), asked)
        with meter(prepared.bytes, "diff") as on_bytes:
            return DiffResult(**vars(checkpoint_diff.carry_out_diff(prepared, on_bytes=on_bytes)))


@dataclass(frozen=True)
class SeriesDiff:
    """The comparisons of several checkpoints, each with the next."""

    pairs: tuple[DiffResult, ...]

    @property
    def is_equal(self) -> bool:
        """True if no checkpoint differs from the next."""
        return all(pair.is_equal for pair in self.pairs)

    def to_html(self) -> str:
        """Return a page for browsers that draws the change of each layer from each checkpoint to
        the next. The page is one file, and needs no network."""
        from zerotools.ops.comparison.diff_page_data import diff_contents
        from zerotools.ops.picture.html_page import page_of

        return page_of(diff_contents(self.pairs), "diff")


@takes_options(DiffKeywords)
def diff_series(
    paths: Sequence[StrPath], *, progress: ProgressWanted = None, **options: Unpack[DiffKeywords]
) -> SeriesDiff:
    """Compare each of several checkpoints with the next, as `diff` does with `changes=True`.

    Raises:
        BadRequest: there are fewer than two paths, the option `adapter` was given, or for the
            reasons of `diff`.
        BadFile: as for `diff`.
        Unsupported: as for `diff`.
    """
    if len(paths) < 2:
        raise BadRequest(f"a series needs at least two checkpoints, but {len(paths)} was given")
    if options.get("adapter") is not None:
        raise BadRequest("--adapter compares two checkpoints; leave it out, or name only two")
    options["changes"] = True
    return SeriesDiff(tuple(diff(a, b, progress=progress, **options) for a, b in pairwise(paths)))
