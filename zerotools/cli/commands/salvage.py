"""`zerotools salvage`: the weights that are left of a damaged checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.conversion_options import (
    Writing,
    conversion_options,
    hint_at_resuming,
)
from zerotools.cli.options.export_options import (
    allow_overflow_option,
    dtype_option,
    format_option,
    keep_aliases_option,
    max_shard_size_option,
    name_options,
)
from zerotools.cli.options.shared import (
    config_dir_option,
    layout_option,
    section_option,
    tag_option,
)
from zerotools.cli.output import render
from zerotools.cli.output.messages import say
from zerotools.cli.output.progress_bar import progress
from zerotools.cli.output.style import paint
from zerotools.core.checkpoint import Origin
from zerotools.core.counts import counted
from zerotools.core.errors import EXIT_DIFFERENCES
from zerotools.io.files.sources import recording
from zerotools.ops.conversions.consolidate import refuse_overflow
from zerotools.ops.conversions.conversion import prove
from zerotools.ops.salvage.examine import prepare
from zerotools.ops.salvage.filled_weights import Part
from zerotools.ops.salvage.holes import said
from zerotools.ops.salvage.preparation import prepare_salvage
from zerotools.ops.salvage.salvage_json import to_json
from zerotools.ops.salvage.salvage_plan import Salvage, SalvageOptions
from zerotools.ops.uploading.destination import check_write, write

_PATH = CheckpointPath()
MAX_LISTED = 12


@click.command("salvage")
@click.argument("path", type=_PATH)
@click.argument("out", type=_PATH)
@click.option(
    "--fill-from",
    type=_PATH,
    metavar="OTHER",
    help="Take what is lost from this checkpoint or model, of any format, and record it.",
)
@tag_option
@layout_option
@section_option
@config_dir_option
@dtype_option
@max_shard_size_option
@name_options(stripped=", those of OTHER too", renamed="; in those of OTHER too")
@format_option
@keep_aliases_option
@allow_overflow_option
@conversion_options
@recording()  # a file that changes between two looks at it is named
def command(
    path: Path,
    out: Path,
    fill_from: Path | None,
    tag: str | None,
    layout: Path | None,
    section: str | None,
    config_dir: Path | None,
    allow_overflow: bool,
    how: Writing,
    **given: Any,
) -> int:
    """Export the weights that are whole of the damaged checkpoint at PATH into the directory OUT.

    Every byte is read and checked. What is lost is listed box by box, and is never replaced by
    zeros: a weight with a hole is left out, unless --fill-from has what is lost. Exit status 1
    means that weights were left out; their names are printed.
    """
    began = time.monotonic()
    to_examine = prepare(path, tag=tag, layout=layout, section=section, stand_in=fill_from)
    with progress(to_examine.bytes_to_read, "examine") as on_bytes:
        found = prepare_salvage(
            to_examine,
            out,
            SalvageOptions(**given),
            fill_from=fill_from,
            config_dir=config_dir,
            budget=how.budget,
            on_bytes=on_bytes,
        )
    written = _carry_out(found, how, allow_overflow=allow_overflow)
    if how.as_json:
        seconds = round(time.monotonic() - began, 3)
        done = {"output": str(out) if written else None, "dry_run": how.dry_run, "seconds": seconds}
        render.print_json({**to_json(found), **done})
    else:
        render.print_lines(describe(found))
        for note in _notes(found):
            say("note", note)
        if found.conversion is not None and found.conversion.lacking is not None:
            say("warning", found.conversion.lacking)
        click.echo(_ending(found, out, written=written, dry_run=how.dry_run))
    return 0 if found.is_complete else EXIT_DIFFERENCES


def _carry_out(found: Salvage, how: Writing, *, allow_overflow: bool) -> bool:
    """Whether the output was written."""
    conversion = found.conversion
    if conversion is None:
        return False
    check_write(conversion, overwrite=how.overwrite, resume=how.resume)
    if how.dry_run:
        prove(conversion)
        return False
    to_handle = conversion.bytes_of_tensors * (2 if how.verify else 1)
    with hint_at_resuming(conversion), progress(to_handle, "salvage") as on_bytes:
        write(
            conversion,
            budget=how.budget,
            overwrite=how.overwrite,
            verify=how.verify,
            resume=how.resume,
            on_bytes=on_bytes,
            check=(lambda _: None) if allow_overflow else refuse_overflow,
        )
    return True


def describe(found: Salvage) -> Iterator[str]:
    """Lines for people: the verdict, what is damaged, what is lost, what is filled from where."""
    yield _verdict(found)
    yield from _listed(
        "damage", [problem.message for problem in found.examined.damage if problem.is_loss]
    )
    yield from _lost(found)
    if found.unnamed:
        some = ", ".join(found.unnamed[:MAX_LISTED])
        yield f"nothing tells which weights were in: {render.clean(some)}"
    yield from _filled(found)
    yield from _left_out(found)
    unchecked = found.examined.unchecked
    if unchecked:
        some = render.clean(", ".join(unchecked[:4]))
        more = f" and {len(unchecked) - 4} more" if len(unchecked) > 4 else ""
        yield (
            f"bytes cannot be checked: no checksums and no manifest, in "
            f"{counted(len(unchecked), 'file')}: {some}{more}"
        )


def _verdict(found: Salvage) -> str:
    origin = found.examined.checkpoint.origin
    path = render.clean(_origin(origin))
    tensors = counted(len(found.examined.checkpoint.tensors), "tensor")
    if found.examined.is_whole:
        return f"{path}: nothing is lost of {tensors}; zerotools consolidate exports it as well"
    lost = counted(len(found.examined.holes), "tensor")
    text = f"DAMAGED: {path}: {lost} of {len(found.examined.sound)} with holes"
    if found.is_complete:
        return paint(f"{text}; every weight can be written", "warning", sys.stdout)
    return paint(f"{text}; {_missing(found)}", "bad", sys.stdout)


def _missing(found: Salvage) -> str:
    if not found.left_out:
        return (
            f"{counted(len(found.rounded), 'weight')} rounded"
            if found.rounded
            else "weights may be left out"
        )
    return f"{counted(len(found.left_out), 'weight')} left out"


def _origin(origin: Origin) -> str:
    facts = [origin.title or origin.format]
    if origin.stage is not None:
        facts.append(f"stage {origin.stage}")
    if origin.world_size is not None:
        facts.append(counted(origin.world_size, "rank"))
    if origin.step is not None:
        facts.append(f"step {origin.step}")
    return f"{origin.path} ({', '.join(facts)})"


def _lost(found: Salvage) -> Iterator[str]:
    """Tensors with holes by role, those that are weights first."""
    by_role: dict[str, list[str]] = {}
    for key, holes in found.examined.holes.items():
        by_role.setdefault(key.role, []).append(f"{key.name}: {holes.why or holes}")
    for role, lines in by_role.items():
        yield from _listed(f"lost of {role}", lines)


def _filled(found: Salvage) -> Iterator[str]:
    by_source: dict[str, list[str]] = {}
    for key, part in found.filled:
        by_source.setdefault(part.source or "", []).append(f"{key.name}: {_part(part)}")
    for source, lines in by_source.items():
        other = found.other
        is_other = other is not None and source == other.name
        name = _origin(other.checkpoint.origin) if other is not None and is_other else source
        yield from _listed(f"filled from {name}", lines)


def _left_out(found: Salvage) -> Iterator[str]:
    """The names, and the reason where it is no hole that was listed before."""
    listed = {key.name for key in found.examined.holes}
    names = [name for name in found.left_out if name in listed]
    if names:
        more = len(names) - MAX_LISTED
        rest = f" and {more} more (--json lists all)" if more > 0 else ""
        yield f"left out: {render.clean(', '.join(names[:MAX_LISTED]))}{rest}"
    if found.rounded:
        more = len(found.rounded) - MAX_LISTED
        rest = f" and {more} more (--json lists all)" if more > 0 else ""
        some = render.clean(", ".join(found.rounded[:MAX_LISTED]))
        yield f"rounded to 16 bits, as their masters are lost: {some}{rest}"
    others = [f"{name}: {why}" for name, why in found.left_out.items() if name not in listed]
    yield from _listed("left out", others)


def _part(part: Part) -> str:
    return f"{said(part.boxes, part.ranges, part.tensor.numel)}, {part.dtype} there"


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"{render.clean(title)}:"
    yield from (f"  {render.clean(line)}" for line in lines[:MAX_LISTED])
    if len(lines) > MAX_LISTED:
        yield f"  ... and {len(lines) - MAX_LISTED} more (--json lists all)"


def _notes(found: Salvage) -> Iterator[str]:
    yield from found.examined.checkpoint.origin.notes
    yield from found.examined.given.notes
    yield from found.notes
    for problem in found.examined.damage:
        if not problem.is_loss:
            yield problem.message
    if any(key.role not in ("param", "param16", "buffer") for key in found.examined.sound):
        yield "weights alone are written: a run cannot resume its optimizer from them"


def _ending(found: Salvage, out: Path, *, written: bool, dry_run: bool) -> str:
    weights = counted(len(found.weights), "weight")
    if found.conversion is None:
        return "nothing was written: no weight is whole"
    if not written:
        return f"would write {out}: {weights}" if dry_run else "nothing was written"
    return f"wrote {out}: {weights}, {render.size(found.conversion.bytes_to_write)}"
