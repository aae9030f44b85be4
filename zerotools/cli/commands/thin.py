"""`zerotools thin`: drop the optimizer state of old checkpoints, in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import (
    CheckpointPath,
    GroupedCommand,
    options_of,
    socket_option,
)
from zerotools.cli.output import render
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.cli.output.report_failure import report_error
from zerotools.core.counts_and_sizes import count_text
from zerotools.ops.thinning.carry_out_thinning import SCHEMA, Outcome, Status
from zerotools.ops.thinning.thin_plan import ThinPlan, leftover_note
from zerotools.ops.verification.verification_result import Soundness
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.progress import metering
from zerotools.public.thin_checkpoints import SelectedOptions, ThinKeywords, ThinResult, ThinSteps

MAX_FILES = 3


@click.command("thin", cls=GroupedCommand)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=CheckpointPath())
@options_of(SelectedOptions)
@socket_option
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(paths: tuple[Path, ...], as_json: bool, **given: Any) -> int:
    """Drop the optimizer state of the checkpoints at PATH, in place; the weights stay loadable.

    Without --yes the command only shows the plan and the bytes that it would free. Training cannot
    resume from a thinned checkpoint. Each thinned checkpoint is written next to the old one,
    compared with it, and put in its place in one step. With --keep-last, --keep-every or
    --older-than, PATH is the directory of a run. The command refuses a checkpoint that a job of the
    daemon would resume from.
    """
    thinning = ThinSteps(paths, bind_options(ThinKeywords, given))
    found = thinning.planned()
    if not as_json:
        render.print_lines(list(_described(found, yes=given["yes"])))
    if given["yes"]:
        with shown_progress() as progress, metering(progress) as meter:
            found = thinning.done(found, meter)
    if as_json:
        render.print_json(found.to_json())
    elif given["yes"]:
        render.print_lines(list(_results(found.checkpoints)))
    errors = [each.error for each in found.checkpoints if each.error is not None]
    for error in errors:
        report_error(error)
    return next((error.exit_code for error in errors), 0)


def _resolved_path(plan: ThinPlan) -> Path:
    return plan.subject.resolve()


def _described(found: ThinResult, *, yes: bool) -> Iterator[str]:
    """Yield the lines of the plan, beginning with the number of bytes that are freed."""
    planned = [each for each in found.checkpoints if each.status is Status.PLANNED]
    freed, ofs = sum(each.freed for each in planned), count_text(len(planned), "checkpoint")
    them = "it" if len(planned) == 1 else "them"
    if planned and freed >= 0:
        verb = "frees" if yes else "would free"
        yield f"{verb} {render.size(freed)} of {ofs}; training cannot resume from {them} afterwards"
    elif planned:
        verb = "takes" if yes else "would take"
        yield (
            f"{verb} {render.size(-freed)} more disk space for {ofs}, because the dropped data has "
            f"other hard links; training cannot resume from {them} afterwards"
        )
    elif not any(each.status is Status.REFUSED for each in found.checkpoints):
        yield "there is nothing to drop"
    for each in found.checkpoints:
        if each.plan is not None and each.status is not Status.REFUSED:
            yield from _one(each)
    for path, why in found.stays:
        yield f"stays: {render.clean(str(path))}: {render.clean(why)}"
    if planned and not found.jobs_checked:
        yield (
            "note: no daemon answers, so it is not known whether a job would resume from "
            f"{'this checkpoint' if len(planned) == 1 else 'these checkpoints'}"
        )
    if planned and not yes:
        yield "nothing was changed; run it again with --yes"


def _one(each: Outcome) -> Iterator[str]:
    plan = each.plan
    assert plan is not None
    path = render.clean(str(plan.subject))
    if each.status is Status.NOTHING:
        yield f"{path}: it has no optimizer state to drop"
    else:
        parts = [f"{role} ({render.size(size)})" for role, size in plan.dropped.items()]
        parts = parts or [render.clean(", ".join(sorted(plan.removed)[:MAX_FILES]))]
        sizes = f"{render.size(plan.bytes_before)} to {render.size(plan.bytes_after)}"
        yield f"{path}: {sizes}: drops {', '.join(parts)}; the {plan.thinning.keep.value} stay"
    if plan.shared and each.status is Status.PLANNED:
        yield (
            f"note: {render.size(plan.shared)} of the dropped data stay on the disk, because "
            "other hard links exist"
        )
    for problem in plan.problems if each.status is Status.PLANNED else ():
        yield f"problem: {render.clean(problem)}"
    for note in (*plan.notes, leftover_note(plan), _note_on_shell(each)):
        if note:
            yield f"note: {render.clean(note)}"


def _note_on_shell(each: Outcome) -> str | None:
    """Return a note if the current directory is inside a checkpoint that will be thinned; else
    None.

    The shell remains in the old directory, which will be empty, because thinning replaces the
    directory.
    """
    assert each.plan is not None
    inside = Path.cwd().is_relative_to(_resolved_path(each.plan))
    if not inside or each.status is not Status.PLANNED:
        return None
    return 'your shell is in this checkpoint: enter the directory again afterwards (cd "$PWD")'


def _results(done: Sequence[Outcome]) -> Iterator[str]:
    for each in done:
        if each.done is not None and each.done.cleared:
            yield f"removed leftovers of an earlier run: {render.size(each.done.cleared)}"
        if (
            each.status is Status.THINNED
            and each.done is not None
            and each.done.checked is not None
        ):
            checked = each.done.checked
            compared = f"{count_text(checked.tensors, 'tensor')} stay"
            if checked.compared:
                compared += f", {checked.compared} of them rewritten and compared"
            whole = checked.soundness is Soundness.WHOLE
            found = "whole" if whole else "no fault was found, but some bytes have no checksum"
            yield f"thinned {render.clean(str(each.path))}: {compared}; {found}"
            for note in each.done.notes:
                yield f"note: {render.clean(note)}"
    gone = [each for each in done if each.status is Status.THINNED]
    if gone:
        freed, ofs = sum(each.freed for each in gone), count_text(len(gone), "checkpoint")
        took = f"took {render.size(-freed)} more disk space for {ofs}"
        yield f"freed {render.size(freed)} of {ofs}" if freed >= 0 else took
