"""`zerotools gather`: collect the shards of a checkpoint from several nodes in one directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import CheckpointPath, GroupedCommand, options_of
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.output.staging import partial_of
from zerotools.ops.gathering.check_gathered import StagedCheck
from zerotools.ops.gathering.find_number_gaps import varying_numbers
from zerotools.ops.gathering.gather_files import SCHEMA, Gathered
from zerotools.ops.gathering.gather_plan import GatherPlan
from zerotools.ops.verification.verification_result import Soundness
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.gather_shards import GatherKeywords, gathered, refuse_nameless

MAX_LISTED = 12
MAX_NAMED = 4


@click.command("gather", cls=GroupedCommand)
@click.argument("sources", metavar="HOST:PATH...", nargs=-1, required=True)
@click.argument("out", type=CheckpointPath())
@options_of(GatherKeywords)
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(sources: tuple[str, ...], out: Path, as_json: bool, **given: Any) -> None:
    """Collect the shards of a checkpoint from several nodes in the directory OUT.

    A source is HOST:PATH, ssh://USER@HOST:PORT/PATH, or a path of this node. The system's ssh
    connects to the nodes, and must not need a password. A file that is equal on several nodes is
    fetched once. If it differs between nodes, no file is fetched. OUT gets its name when its
    checkpoint is whole. Until then all files stay in OUT.partial; after an interruption, the same
    command continues.
    """

    def print_notes(plan: GatherPlan) -> None:
        for note in _notes(plan) if not as_json else ():
            print_message("note", note)

    with _hint_at_resuming(out), shown_progress() as progress:
        found = gathered(sources, out, bind_options(GatherKeywords, given), progress, print_notes)
    if as_json:
        render.print_json(found.to_json())
    elif found.gathered is None:
        render.print_lines(_planned(found.plan))
    else:
        render.print_lines(_report(found.gathered, fast=given["fast"]))
    refuse_nameless(found)


@contextmanager
def _hint_at_resuming(out: Path) -> Iterator[None]:
    """After an interruption, print where the fetched files are kept, and that the same command
    continues the transfer."""
    try:
        yield
    except (KeyboardInterrupt, ZerotoolsError, OSError):
        partial = partial_of(out)
        if partial.exists():
            print_message("note", f"{partial} is kept; run the same command to continue")
        raise


def _notes(plan: GatherPlan) -> Iterator[str]:
    for listing in plan.survey.listings:
        if listing.left_out:
            yield (
                f"{listing.source.name}: links and special files are left out: "
                f"{_some(listing.left_out)}"
            )
        if not listing.makes_digests and plan.fetches.get(listing.source.name):
            yield (
                f"{listing.source.name}: that node has no sha256sum, so only sizes and times of "
                "the files are compared"
            )
    if plan.doubt:
        yield f"according to the file names, the checkpoint is not complete yet: {plan.doubt}"
    if plan.may_lack:
        yield (
            f"according to the numbers in the file names, no source has {_some(plan.may_lack)}; "
            "if another node has these files, add that node"
        )


def _planned(plan: GatherPlan) -> Iterator[str]:
    files = count_text(len(plan.survey.files), "file")
    yield f"would make {plan.destination}: {render.size(plan.bytes_of_all)} in {files}"
    yield from _sources(plan)
    for source, fetches in plan.fetches.items():
        yield f"from {render.clean(source)}:"
        for each in fetches:
            yield f"  {render.clean(each.name)}  {render.size(each.file.size)}"


def _sources(plan: GatherPlan) -> Iterator[str]:
    rows = []
    for listing in plan.survey.listings:
        name = listing.source.name
        held = [each.size for each in plan.survey.files.values() if name in each.holders]
        fetched = [each.file.size for each in plan.fetches.get(name, ())]
        numbers = (str(len(held)), render.size(sum(held)))
        fetches = (str(len(fetched)), render.size(sum(fetched)))
        rows.append((render.clean(name), *numbers, *fetches))
    headers = ("SOURCE", "FILES", "SIZE", "FETCHED", "SIZE")
    yield from render.table(headers, rows, right=("FILES", "SIZE", "FETCHED"))
    if plan.survey.complete:
        yield f"{count_text(len(plan.survey.complete), 'file')} already complete"


def _report(done: Gathered, *, fast: bool) -> Iterator[str]:
    plan, checked = done.plan, done.checked
    yield from _sources(plan)
    findings = checked.causes
    if findings:
        count = count_text(len(findings), "finding")
        affected = len(checked.findings) - len(findings)
        count += f", {count_text(affected, 'tensor')} affected" if affected else ""
        where = render.clean(str(plan.destination if done.has_name else checked.directory))
        yield paint(f"NOT WHOLE: {where}: {count}", "bad", sys.stdout)
    for message in findings[:MAX_LISTED]:
        yield f"problem: {render.clean(message)}"
    if len(findings) > MAX_LISTED:
        yield f"... and {len(findings) - MAX_LISTED} more (--json lists all)"
    lacking = {name: "may be missing" for name in plan.may_lack if not checked.is_whole}
    lacking |= dict.fromkeys(checked.missing, "missing")
    for name, what in list(lacking.items())[:MAX_LISTED]:
        yield f"{what}: {render.clean(name)}"
        for source, there in done.holders_of_alike(name).items():
            yield f"  {render.clean(source)} has {_numbers(name, there)}"
    said = [
        note
        for each in checked.verifications
        for note in notes_on_weights(each.checkpoint.origin.notes)
    ]
    for note in (*said, *checked.notes):
        yield f"note: {render.clean(note)}"
    if done.has_name:
        files = count_text(len(plan.survey.files), "file")
        yield (
            f"made {plan.destination}: {render.size(plan.bytes_of_all)} in {files}"
            f"{_verdict(checked, fast=fast)}"
        )


def _verdict(checked: StagedCheck, *, fast: bool) -> str:
    if not checked.is_whole:
        return ""
    if fast:
        return "; its structure has no problems, but its bytes were not checked (--fast)"
    if any(each.verdict is Soundness.UNCHECKED for each in checked.verifications):
        return "; no problem was found, but not everything can be checked (see zerotools verify)"
    return "; it is whole"


def _numbers(name: str, there: list[str]) -> str:
    """Return a phrase about the files in `there`, which have names like `name`. If the names differ
    only in a number, the phrase lists the numbers.
    """
    if not there:
        return "no similar file"
    numbers = varying_numbers(name, there)
    return _some(there) if numbers is None else f"those with the numbers {render.spans(numbers)}"


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - MAX_NAMED
    shown = ", ".join(map(render.clean, names[:MAX_NAMED]))
    return shown + (f" and {more} more" if more > 0 else "")
