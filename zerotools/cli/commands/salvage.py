"""`zerotools salvage`: export the undamaged weights of a damaged checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import (
    CheckpointPath,
    GroupedCommand,
    json_option,
    options_of,
)
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.convert_and_report import hint_at_resuming
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES
from zerotools.ops.salvage.fill_holes import Part
from zerotools.ops.salvage.find_holes import boxes_text
from zerotools.ops.salvage.salvage_plan import Salvage
from zerotools.public.salvage_weights import SalvageKeywords, SalvageResult, salvage

_PATH = CheckpointPath()
MAX_LISTED = 12


@click.command("salvage", cls=GroupedCommand)
@click.argument("path", type=_PATH)
@click.argument("out", type=_PATH)
@options_of(SalvageKeywords)
@json_option
def command(path: Path, out: Path, as_json: bool, **given: Any) -> int:
    """Export the undamaged weights of the checkpoint at PATH into the directory OUT.

    Every byte is read and checked. Lost values are listed box by box, and are never replaced by
    zeros: a weight with a hole is left out, unless --fill-from has the lost values. Exit status 1
    means that weights were left out; their names are printed.
    """
    with hint_at_resuming(out), shown_progress() as progress:
        found = salvage(path, out, progress=progress, **given)
    if as_json:
        render.print_json(found.to_json())
    else:
        render.print_lines(describe(found.salvage_plan))
        for note in _notes(found):
            print_message("note", note)
        if found.lacking is not None:
            print_message("warning", found.lacking)
        click.echo(_ending(found))
    return 0 if found.is_complete else EXIT_DIFFERENCES


def describe(found: Salvage) -> Iterator[str]:
    """Yield the lines to print: the verdict, the damage, the lost values, and the values that were
    filled from another checkpoint."""
    yield _verdict(found)
    yield from _listed(
        "damage", [problem.message for problem in found.examined.damage if problem.is_loss]
    )
    yield from _lost(found)
    if found.unnamed:
        some = ", ".join(found.unnamed[:MAX_LISTED])
        yield f"the names of the weights in these lost files are not known: {render.clean(some)}"
    yield from _filled(found)
    yield from _list_omitted(found)
    unchecked = found.examined.unchecked
    if unchecked:
        some = render.clean(", ".join(unchecked[:4]))
        more = f" and {len(unchecked) - 4} more" if len(unchecked) > 4 else ""
        yield (
            "bytes cannot be checked (no checksums and no manifest) in "
            f"{count_text(len(unchecked), 'file')}: {some}{more}"
        )


def _verdict(found: Salvage) -> str:
    origin = found.examined.checkpoint.origin
    path = render.clean(render.origin(origin))
    tensors = count_text(len(found.examined.checkpoint.tensors), "tensor")
    if found.examined.is_whole:
        return f"{path}: {tensors}, and nothing is lost; zerotools consolidate exports it too"
    lost = count_text(len(found.examined.holes), "tensor")
    text = f"DAMAGED: {path}: {lost} of {len(found.examined.sound)} have holes"
    if found.is_complete:
        return paint(f"{text}; every weight can be written", "warning", sys.stdout)
    return paint(f"{text}; {_missing(found)}", "bad", sys.stdout)


def _missing(found: Salvage) -> str:
    if not found.left_out:
        return (
            f"{count_text(len(found.rounded), 'weight')} rounded"
            if found.rounded
            else "weights may be left out"
        )
    return f"{count_text(len(found.left_out), 'weight')} left out"


def _lost(found: Salvage) -> Iterator[str]:
    """Yield the lines about the tensors that have lost values, grouped by kind of tensor (role),
    weights first.
    """
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
        name = render.origin(other.checkpoint.origin) if other is not None and is_other else source
        yield from _listed(f"filled from {name}", lines)


def _list_omitted(found: Salvage) -> Iterator[str]:
    """Yield the names of the weights that are left out, each with the reason. The reason is omitted
    if it is a hole that is listed above.
    """
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
        yield f"rounded to 16 bits, because their masters are lost: {some}{rest}"
    others = [f"{name}: {why}" for name, why in found.left_out.items() if name not in listed]
    yield from _listed("left out", others)


def _part(part: Part) -> str:
    return f"{boxes_text(part.boxes, part.ranges, part.tensor.numel)}, stored as {part.dtype} there"


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"{render.clean(title)}:"
    yield from (f"  {render.clean(line)}" for line in lines[:MAX_LISTED])
    if len(lines) > MAX_LISTED:
        yield f"  ... and {len(lines) - MAX_LISTED} more (--json lists all)"


def _notes(found: SalvageResult) -> Iterator[str]:
    yield from found.notes
    for problem in found.damage:
        if not problem.is_loss:
            yield problem.message
    if any(
        key.role not in ("param", "param16", "buffer") for key in found.salvage_plan.examined.sound
    ):
        yield "only weights are written: a run cannot resume its optimizer from them"


def _ending(found: SalvageResult) -> str:
    weights = count_text(len(found.weights), "weight")
    if found.salvage_plan.conversion is None:
        return "nothing was written: every weight is damaged"
    if found.dry_run:
        return f"would write {found.destination}: {weights}"
    return f"wrote {found.destination}: {weights}, {render.size(found.bytes_to_write)}"
