"""Export the undamaged weights of a damaged checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from zerotools.core.checkpoint import Key, Problem
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.stores.parse_url import output_of, path_of
from zerotools.ops.conversions.conversion import prove_coverage
from zerotools.ops.salvage.examine_damage import read_remaining
from zerotools.ops.salvage.fill_holes import Part
from zerotools.ops.salvage.find_holes import Holes
from zerotools.ops.salvage.prepare_salvage import prepare_salvage, to_json
from zerotools.ops.salvage.salvage_plan import Salvage
from zerotools.ops.salvage.salvage_plan import SalvageOptions as PlanOptions
from zerotools.ops.write_output import check_write
from zerotools.public.command_options.declare_and_bind_options import (
    WHAT,
    Option,
    PathOption,
    StrPath,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.model_output_options import (
    CheckNamesOption,
    FormatOption,
    MergeOptions,
    ModelOptions,
    overflow_check,
)
from zerotools.public.command_options.part_and_memory_options import WritingOptions, budget_of
from zerotools.public.command_options.read_options import ConfigDirOption, ReadingOptions
from zerotools.public.progress import ProgressWanted, metering
from zerotools.public.run_conversion import write_reporting


class FillOption(TypedDict, total=False):
    """The option for another checkpoint that replaces lost values."""

    fill_from: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="OTHER",
            help="Fill lost values from this checkpoint or model, of any format. "
            "zerotools-salvage.json lists the filled values. --strip-prefix and --rename also "
            "change the names in OTHER.",
        ),
    ]


class SalvageKeywords(
    FillOption,
    ReadingOptions,
    MergeOptions,
    ModelOptions,
    CheckNamesOption,
    FormatOption,
    ConfigDirOption,
    WritingOptions,
    total=False,
):
    """The options of `zerotools salvage`."""


@dataclass(frozen=True)
class SalvageResult:
    """The result of `salvage`. After a dry run it is a plan, and no file was written.

    If no weight is complete, no output is written.

    Attributes:
        weights: the names in the output.
        left_out: the weights that are not in the output, each with the reason.
        unnamed: lost files, if it is not known which tensors they had.
        rounded: weights that are less precise than they were before the damage.
        holes: the lost boxes of each tensor.
        filled: the parts that come from `fill_from`.
        damage: the problems of the source.
        salvage_plan: the plan that `zerotools.ops.salvage` made.
    """

    path: Path
    format: str
    step: int | None
    destination: Path
    weights: tuple[str, ...] = field(repr=False)
    left_out: Mapping[str, str]
    unnamed: tuple[str, ...]
    rounded: tuple[str, ...]
    holes: Mapping[Key, Holes] = field(repr=False)
    filled: tuple[tuple[Key, Part], ...] = field(repr=False)
    damage: tuple[Problem, ...]
    is_complete: bool
    is_whole: bool
    notes: tuple[str, ...]
    lacking: str | None
    bytes_to_write: int
    written: bool
    dry_run: bool
    seconds: float
    salvage_plan: Salvage = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/salvage-json.md)."""
        return {
            **to_json(self.salvage_plan),
            "output": str(self.destination) if self.written else None,
            "dry_run": self.dry_run,
            "seconds": round(self.seconds, 3),
        }


@takes_options(SalvageKeywords)
def salvage(
    path: StrPath,
    out: StrPath,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[SalvageKeywords],
) -> SalvageResult:
    """Export the undamaged weights of the checkpoint at `path` into the directory `out`.

    Every byte is read and checked. Lost values are never replaced by zeros: a weight that lost
    values is left out, unless `fill_from` has these values. `is_complete` of the result is True if
    the output has every weight.

    Raises:
        BadRequest: `path` does not exist, `out` exists, `fill_from` has another model, or weights
            are too large for their new dtype.
        BadFile: `path` is not a checkpoint, its tensors are not known, or its files belong to two
            saves.
        Unsupported: the format cannot be read.
    """
    given = bind_options(SalvageKeywords, options)
    destination, other = output_of(out), given["fill_from"]
    asked = PlanOptions(
        max_shard_bytes=given["max_shard_size"],
        check_names=not given["no_check_names"],
        **{
            name: given[name]
            for name in (
                *("dtype", "strip_prefix", "rename", "include", "exclude"),
                *("keep_aliases", "format", "base", "adapter_config", "adapter_name"),
            )
        },
    )
    began = time.monotonic()
    reading = {name: given[name] for name in ("tag", "layout", "section")}
    with recording_sources():
        to_examine = read_remaining(path_of(path), **reading, stand_in=other)
        with metering(progress) as meter, meter(to_examine.bytes_to_read, "examine") as on_bytes:
            found = prepare_salvage(
                to_examine,
                destination,
                asked,
                fill_from=other,
                config_dir=given["config_dir"],
                budget=budget_of(given),
                on_bytes=on_bytes,
            )
        written = _write(found, given, progress)
    return _result(found, destination, given, written, time.monotonic() - began)


def _write(found: Salvage, given: Mapping[str, Any], progress: ProgressWanted) -> bool:
    """Write the planned output `found`, and return True. In a dry run, or if no weight is complete,
    write nothing and return False.
    """
    conversion = found.conversion
    if conversion is None:
        return False
    check_write(conversion, overwrite=given["overwrite"], resume=given["resume"])
    if given["dry_run"]:
        prove_coverage(conversion)
        return False
    write_reporting(conversion, given, "salvage", progress, overflow_check(given))
    return True


def _result(
    found: Salvage, destination: Path, given: Mapping[str, Any], written: bool, seconds: float
) -> SalvageResult:
    examined, conversion = found.examined, found.conversion
    origin = examined.checkpoint.origin
    return SalvageResult(
        path=origin.path,
        format=origin.format,
        step=origin.step,
        destination=destination,
        weights=tuple(key.name for key in found.weights),
        left_out=found.left_out,
        unnamed=found.unnamed,
        rounded=found.rounded,
        holes=examined.holes,
        filled=tuple(found.filled),
        damage=tuple(examined.damage),
        is_complete=found.is_complete,
        is_whole=examined.is_whole,
        notes=(*notes_on_weights(origin.notes), *examined.given.notes, *found.notes),
        lacking=None if conversion is None else conversion.lacking,
        bytes_to_write=0 if conversion is None else conversion.bytes_to_write,
        written=written,
        dry_run=given["dry_run"],
        seconds=seconds,
        salvage_plan=found,
    )
