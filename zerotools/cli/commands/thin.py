"""`zerotools thin`: drop the optimizer state of old checkpoints, in place."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.shared import (
    layout_option,
    section_option,
    socket_option,
    tag_option,
)
from zerotools.cli.options.sizes import ByteSize
from zerotools.cli.options.spans import Span
from zerotools.cli.output import render
from zerotools.cli.output.failure import report_error
from zerotools.cli.output.progress_bar import progress
from zerotools.core.counts import counted
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.core.thinning import Keep
from zerotools.formats.format import ReadOptions
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.thinning.in_place import thin
from zerotools.ops.thinning.run_checkpoints import paths_of, select
from zerotools.ops.thinning.thin_plan import ThinPlan, leftover_note, prepare
from zerotools.ops.thinning.thin_report import SCHEMA, Outcome, Status

if TYPE_CHECKING:
    from zerotools.jobs.client.needed_checkpoints import Need, NeedGuard

MAX_FILES = 3


@dataclass(frozen=True)
class _Asked:
    """What was asked for, and what is known of the daemon's jobs; None: no daemon answers."""

    keep: Keep
    options: ReadOptions
    force: bool
    yes: bool
    budget: MemoryBudget
    needed: list[Need] | None
    guard: NeedGuard


@dataclass
class _Chosen:
    """The checkpoints that are meant, and those of a run that stay, with the reasons."""

    paths: list[Path] = field(default_factory=list)
    stays: list[tuple[Path, str]] = field(default_factory=list)
    failed: list[Outcome] = field(default_factory=list)


@click.command("thin")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=CheckpointPath())
@click.option(
    "--keep",
    type=click.Choice([each.value for each in Keep]),
    default=Keep.MASTERS.value,
    show_default=True,
    help="masters: drop the state of the optimizer alone. weights: drop fp32 masters, too, where "
    "16-bit weights lie beside them.",
)
@click.option("-y", "--yes", is_flag=True, help="Do it. Without it, only say what would be done.")
@click.option(
    "--older-than",
    metavar="TIME",
    type=Span(),
    help="Of the checkpoints in PATH, those written longer ago: 30d, 12h, or seconds.",
)
@click.option(
    "--keep-last",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of the checkpoints in PATH, all but the N newest.  [default: 1]",
)
@click.option(
    "--keep-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of the checkpoints in PATH, not those whose step is a multiple of N.",
)
@click.option("--force", is_flag=True, help="Thin a checkpoint that has problems, too.")
@tag_option
@layout_option
@section_option
@click.option(
    "--workers", type=int, default=None, help="Threads. Default: one per core, at most 8."
)
@click.option(
    "--max-memory",
    type=ByteSize(),
    default="256MiB",
    show_default=True,
    help="Memory for the buffers of all workers together.",
)
@socket_option
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(
    paths: tuple[Path, ...],
    keep: str,
    yes: bool,
    older_than: int | None,
    keep_last: int | None,
    keep_every: int | None,
    force: bool,
    tag: str | None,
    layout: Path | None,
    section: str | None,
    workers: int | None,
    max_memory: int,
    socket: Path | None,
    as_json: bool,
) -> int:
    """Drop the optimizer state of the checkpoints at PATH, in place; the weights stay loadable.

    Without --yes it only says what would go and how many bytes that frees. Training cannot resume
    from what is left. Each thinned checkpoint is made beside the old one, compared with it, and
    exchanged with it in one step. With --keep-last, --keep-every or --older-than, PATH is a run's
    directory. A checkpoint that a job of the daemon would resume from is refused.
    """
    began = time.monotonic()
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    options = ReadOptions(tag, layout, section)
    asked = _Asked(Keep(keep), options, force, yes, budget, *_asking(socket))
    selecting = not (older_than is None and keep_last is None and keep_every is None)
    if selecting and tag is not None:
        raise BadRequest("--tag names one checkpoint of a directory; leave it or the choice out")
    chosen = _Chosen(list(paths))
    if selecting:
        chosen = _choose(paths, keep_last, keep_every, older_than)
    looked = _once([*chosen.failed, *(_look(path, asked) for path in _distinct(chosen.paths))])
    if not as_json:
        render.print_lines(list(_described(looked, chosen, asked)))
    done = [_do(each, asked) for each in looked] if yes else looked
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        render.print_json({**_to_json(done, chosen, asked), "seconds": seconds})
    elif yes:
        render.print_lines(list(_results(done)))
    for each in done:
        if each.error is not None:
            report_error(each.error)
    return next((each.error.exit_code for each in done if each.error is not None), 0)


def _asking(socket: Path | None) -> tuple[list[Need] | None, NeedGuard]:
    """What the daemon's jobs need now, and what asks again. Nothing else of this command knows of
    jobs."""
    from zerotools.jobs.client.needed_checkpoints import NeedGuard, needs_at

    return needs_at(socket), NeedGuard(socket)


def _choose(
    paths: Sequence[Path], keep_last: int | None, keep_every: int | None, older_than: int | None
) -> _Chosen:
    chosen = _Chosen()
    for path in paths:
        try:
            found = select(
                path,
                keep_last=keep_last,
                keep_every=keep_every,
                older_than=older_than,
                now=time.time(),
            )
        except ZerotoolsError as error:
            chosen.failed.append(_refused(path, error))
        else:
            chosen.paths += paths_of(found.chosen)
            chosen.stays += found.stays
    return chosen


def _distinct(paths: Sequence[Path]) -> list[Path]:
    return list({path.absolute(): path for path in paths}.values())


def _once(looked: Sequence[Outcome]) -> list[Outcome]:
    """Without those that are another name of one before them: `run`, `run/global_step2`."""
    found: dict[Path, Outcome] = {}
    for each in looked:
        found.setdefault(each.path.absolute() if each.plan is None else _place(each.plan), each)
    return list(found.values())


def _place(plan: ThinPlan) -> Path:
    return plan.subject.resolve()


def _refused(path: Path, error: ZerotoolsError, before: Outcome | None = None) -> Outcome:
    plan = None if before is None else before.plan
    return Outcome(path, Status.REFUSED, plan, error=error)


def _look(path: Path, asked: _Asked) -> Outcome:
    """What thinning one checkpoint would do."""
    try:
        plan = prepare(path, asked.keep, asked.options)
        need = next((each for each in asked.needed or () if each.concerns(plan.subject)), None)
        if plan.has_work and need is not None:
            raise BadRequest(need.sentence(plan.subject))
    except ZerotoolsError as error:
        return _refused(path, error)
    return Outcome(path, Status.PLANNED if plan.has_work else Status.NOTHING, plan)


def _do(looked: Outcome, asked: _Asked) -> Outcome:
    plan = looked.plan
    if plan is None or looked.status is Status.REFUSED:
        return looked
    if looked.status is Status.NOTHING and leftover_note(plan) is None:
        return looked
    total = plan.bytes_to_write + plan.bytes_after
    try:
        with progress(total, f"thin {plan.subject.name}") as on_bytes:
            done = thin(
                plan,
                force=asked.force,
                budget=asked.budget,
                on_bytes=on_bytes,
                permit=asked.guard.refuse,
            )
    except ZerotoolsError as error:
        return _refused(looked.path, error, looked)
    status = Status.THINNED if plan.has_work else Status.NOTHING
    return replace(looked, status=status, done=done)


def _described(looked: Sequence[Outcome], chosen: _Chosen, asked: _Asked) -> Iterator[str]:
    """What would be done, the bytes that it frees first."""
    planned = [each for each in looked if each.status is Status.PLANNED]
    freed, ofs = sum(each.freed for each in planned), counted(len(planned), "checkpoint")
    if planned and freed >= 0:
        verb = "frees" if asked.yes else "would free"
        yield f"{verb} {render.size(freed)} of {ofs}; training cannot resume from what is left"
    elif planned:
        verb = "takes" if asked.yes else "would take"
        yield (
            f"{verb} {render.size(-freed)} more for {ofs}, as what goes stays elsewhere; training "
            "cannot resume from what is left"
        )
    elif not any(each.status is Status.REFUSED for each in looked):
        yield "there is nothing to drop"
    for each in looked:
        if each.plan is not None and each.status is not Status.REFUSED:
            yield from _one(each)
    for path, why in chosen.stays:
        yield f"stays: {render.clean(str(path))}: {render.clean(why)}"
    if asked.needed is None and planned:
        yield (
            "note: no daemon answers, so it was not checked whether a job would resume from "
            f"{'it' if len(planned) == 1 else 'them'}"
        )
    if planned and not asked.yes:
        yield "nothing was changed; --yes does it"


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
            f"note: {render.size(plan.shared)} of it have other names elsewhere, and stay on the "
            "disk there"
        )
    for problem in plan.problems if each.status is Status.PLANNED else ():
        yield f"problem: {render.clean(problem)}"
    for note in (*plan.notes, leftover_note(plan), _note_on_shell(each)):
        if note:
            yield f"note: {render.clean(note)}"


def _note_on_shell(each: Outcome) -> str | None:
    """A shell that stands in the old directory stays there, and sees it empty."""
    assert each.plan is not None
    inside = Path.cwd().is_relative_to(_place(each.plan))
    if not inside or each.status is not Status.PLANNED:
        return None
    return 'the current directory is in it: enter it again afterwards (cd "$PWD")'


def _results(done: Sequence[Outcome]) -> Iterator[str]:
    for each in done:
        if each.done is not None and each.done.cleared:
            yield f"removed what an earlier run had left: {render.size(each.done.cleared)}"
        if (
            each.status is Status.THINNED
            and each.done is not None
            and each.done.checked is not None
        ):
            checked = each.done.checked
            compared = f"{counted(checked.tensors, 'tensor')} stay"
            if checked.compared:
                compared += f", {checked.compared} of them written anew and compared"
            yield f"thinned {render.clean(str(each.path))}: {compared}; {checked.soundness.value}"
            for note in each.done.notes:
                yield f"note: {render.clean(note)}"
    gone = [each for each in done if each.status is Status.THINNED]
    if gone:
        freed, ofs = sum(each.freed for each in gone), counted(len(gone), "checkpoint")
        took = f"took {render.size(-freed)} more for {ofs}"
        yield f"freed {render.size(freed)} of {ofs}" if freed >= 0 else took


def _to_json(done: Sequence[Outcome], chosen: _Chosen, asked: _Asked) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "dry_run": not asked.yes,
        "keep": asked.keep.value,
        "jobs_checked": asked.needed is not None,
        "freed_bytes": sum(each.freed for each in done),
        "checkpoints": [each.to_json() for each in done],
        "stays": [{"path": str(path), "why": why} for path, why in chosen.stays],
    }
