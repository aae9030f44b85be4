"""What the commands that write a checkpoint have in common: options, progress, the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

from zerotools.cli.options.sizes import ByteSize
from zerotools.cli.output.conversion_report import (
    losses_json,
    plan_json,
    print_losses,
    print_notes,
)
from zerotools.cli.output.messages import say
from zerotools.cli.output.progress_bar import progress
from zerotools.cli.output.render import duration, print_json, size, spans
from zerotools.core.counts import counted
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.conversion import Conversion, Unchanged, prove
from zerotools.ops.conversions.in_parts import check_part, perform_part, prove_part
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.parts.share import OutputPart, PartPlan
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.uploading.destination import check_write, write


@dataclass(frozen=True, slots=True)
class Writing:
    """How to write, whatever is written: the options of every writing command."""

    max_memory: int
    workers: int | None
    dry_run: bool
    verify: bool
    resume: bool
    overwrite: bool
    as_json: bool

    @property
    def budget(self) -> MemoryBudget:
        if self.workers is None:
            return MemoryBudget(self.max_memory)
        return MemoryBudget(self.max_memory, self.workers)


def conversion_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add the options that every writing command takes; it is given them as `how`, a `Writing`.
    What it returns is the exit status."""
    names = [field.name for field in fields(Writing)]

    @wraps(command)
    def collected(**given: Any) -> int | None:
        how = Writing(**{name: given.pop(name) for name in names})
        return command(**given, how=how)

    options = (
        click.option(
            "--max-memory",
            type=ByteSize(),
            default="1GiB",
            show_default=True,
            help="Memory for the buffers of all workers together.",
        ),
        click.option(
            "--workers", type=int, default=None, help="Threads. Default: one per core, at most 8."
        ),
        click.option("--dry-run", is_flag=True, help="Print the plan, and write nothing."),
        click.option(
            "--verify",
            is_flag=True,
            help="Check the source, read the output back, compare, and record its digests.",
        ),
        click.option(
            "--resume", is_flag=True, help="Continue an interrupted run of the same command."
        ),
        click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        option(collected)
    return collected


def carry_out(
    conversion: Conversion,
    how: Writing,
    *,
    verb: str,
    check: Callable[[WriteReport], None] = lambda _: None,
    part: OutputPart | None = None,
) -> None:
    """Show the plan or follow it, with a progress bar on a terminal, and say what was done. With
    `part` that part alone."""
    if part is not None:
        carry_out_part(conversion, part, how, verb=verb, check=check)
        return
    if how.dry_run:
        check_write(conversion, overwrite=how.overwrite, resume=how.resume)
        _show_plan(conversion, how.budget, as_json=how.as_json)
        return
    began = time.monotonic()
    to_handle = conversion.bytes_of_tensors * (2 if how.verify else 1)
    with hint_at_resuming(conversion), progress(to_handle, verb) as on_bytes:
        report = write(
            conversion,
            budget=how.budget,
            overwrite=how.overwrite,
            verify=how.verify,
            resume=how.resume,
            on_bytes=on_bytes,
            check=check,
        )
    seconds = time.monotonic() - began
    if how.as_json:
        done = {
            "dry_run": False,
            "seconds": round(seconds, 3),
            "resumed": list(report.resumed),
            "verified": how.verify,
            "manifest": None if report.manifest is None else str(report.manifest),
            **losses_json(report),
        }
        print_json({**plan_json(conversion), **done})
        return
    print_notes(conversion)
    for note in report.notes:
        say("note", note)
    print_losses(report)
    took = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    files = counted(report.files, "file")
    tensors = counted(len(conversion.target.checkpoint.tensors), "tensor")
    click.echo(
        f"wrote {conversion.destination}: {tensors}, "
        f"{size(conversion.bytes_to_write)} in {files}, {took}"
        + (f"; {len(report.resumed)} of them were complete before" if report.resumed else "")
        + (f"; verified against the source, digests in {report.manifest}" if how.verify else "")
    )


def carry_out_part(
    conversion: Conversion,
    part: OutputPart,
    how: Writing,
    *,
    verb: str,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> None:
    """As `carry_out`, of one part.

    Raises:
        BadRequest: it is asked for with what cannot be done in parts.
    """
    if isinstance(conversion.destination, RemotePath):
        raise Unsupported(
            f"{conversion.destination} is in an object store, in which parts have no place to "
            "share; leave --part out, or write to a shared file system"
        )
    if how.verify:
        raise BadRequest(
            "--verify reads the whole output back, which no part can do; leave it out, and run "
            f"zerotools verify {conversion.destination} when all parts are done"
        )
    copies, planned = prove_part(conversion, part)
    if how.dry_run:
        check_part(conversion, planned, overwrite=how.overwrite)
        _show_part_plan(conversion, planned, copies, as_json=how.as_json)
        return
    began = time.monotonic()
    to_handle = sum(planned.tensor_bytes.values())
    with hint_at_resuming(conversion, ""), progress(to_handle, f"{verb} {part}") as on_bytes:
        report = perform_part(
            conversion,
            planned,
            budget=how.budget,
            overwrite=how.overwrite,
            on_bytes=on_bytes,
            check=check,
        )
    if how.as_json:
        done = {
            "dry_run": False,
            "seconds": round(time.monotonic() - began, 3),
            "resumed": list(report.resumed),
            "part": {**_part_json(planned), "missing": list(report.missing)},
            **losses_json(report),
        }
        print_json({**plan_json(conversion), **done})
        return
    print_notes(conversion)
    print_losses(report)
    said = f"{part} is complete: {size(planned.nbytes)} in {counted(report.files, 'file')}"
    if report.missing:
        click.echo(
            f"{said}; {conversion.destination} is made when all are, and these are not: "
            f"{spans(report.missing)}"
        )
    else:
        click.echo(f"{said}; so are the others, and {conversion.destination} is there")


def _part_json(planned: PartPlan) -> dict[str, Any]:
    return {
        "index": planned.part.index,
        "of": planned.part.of,
        "files": [{"name": name, **each._asdict()} for name, each in planned.share.items()],
        "bytes": planned.nbytes,
    }


def _show_part_plan(
    conversion: Conversion, planned: PartPlan, copies: int, *, as_json: bool
) -> None:
    if as_json:
        part = _part_json(planned)
        print_json({**plan_json(conversion), "dry_run": True, "copies": copies, "part": part})
        return
    print_notes(conversion)
    files = counted(len(planned.share), "file")
    click.echo(
        f"{planned.part} would write {size(planned.nbytes)} of {conversion.destination}, in "
        f"{files}:"
    )
    for name, (begin, end) in planned.share.items():
        is_whole = (begin, end) == (0, conversion.target.files[name].size)
        of_it = "" if is_whole else f"  bytes {begin} to {end} of it"
        click.echo(f"  {name}  {size(end - begin)}{of_it}")


def say_unchanged(unchanged: Unchanged, *, as_json: bool) -> None:
    """Say that nothing was to be done."""
    path = str(unchanged.checkpoint.origin.path)
    if as_json:
        print_json(
            {
                "source": path,
                "destination": None,
                "unchanged": True,
            }
        )
        return
    click.echo(
        f"{path} is already laid out like that for "
        f"{counted(unchanged.world_size, 'rank')}; nothing was written (--force rewrites it)"
    )


def _show_plan(conversion: Conversion, limits: MemoryBudget, *, as_json: bool) -> None:
    copies = prove(conversion)
    if as_json:
        print_json({**plan_json(conversion), "dry_run": True, "copies": copies})
        return
    print_notes(conversion)
    click.echo(f"would write {conversion.destination}:")
    for name, file in conversion.target.files.items():
        click.echo(f"  {name}  {size(file.size)}")
    click.echo(
        f"{counted(len(conversion.target.checkpoint.tensors), 'tensor')}; "
        f"read {size(conversion.bytes_to_read)}, write {size(conversion.bytes_to_write)}; "
        f"at most {size(limits.max_total_bytes)} of buffers"
    )


@contextmanager
def hint_at_resuming(conversion: Conversion, flag: str = "with --resume ") -> Iterator[None]:
    """Say what an interrupted run leaves, and how to continue it; `flag` is what that takes."""
    try:
        yield
    except KeyboardInterrupt:
        partial = partial_of(conversion.destination)
        if isinstance(conversion.destination, RemotePath):
            partial = conversion.destination
            partial.forget()
        if partial.exists():
            say("note", f"{partial} is kept; run the same command {flag}to continue")
        raise
