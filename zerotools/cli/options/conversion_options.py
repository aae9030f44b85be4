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
from zerotools.cli.output.messages import say
from zerotools.cli.output.progress_bar import progress
from zerotools.cli.output.render import duration, print_json, size
from zerotools.core.counts import counted
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.conversion import Conversion, Unchanged, check_output, perform, prove
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.workers import MemoryBudget


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
) -> None:
    """Show the plan or follow it, with a progress bar on a terminal, and say what was done."""
    if how.dry_run:
        check_output(conversion, overwrite=how.overwrite)
        _show_plan(conversion, how.budget, as_json=how.as_json)
        return
    began = time.monotonic()
    to_handle = conversion.bytes_of_tensors * (2 if how.verify else 1)
    with hint_at_resuming(conversion), progress(to_handle, verb) as on_bytes:
        report = perform(
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
            **_losses_json(report),
        }
        print_json({**_plan_json(conversion), **done})
        return
    _print_notes(conversion)
    _print_losses(report)
    took = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    files = counted(report.files, "file")
    tensors = counted(len(conversion.target.checkpoint.tensors), "tensor")
    click.echo(
        f"wrote {conversion.destination}: {tensors}, "
        f"{size(conversion.bytes_to_write)} in {files}, {took}"
        + (f"; {len(report.resumed)} of them were complete before" if report.resumed else "")
        + (f"; verified against the source, digests in {report.manifest}" if how.verify else "")
    )


def say_unchanged(unchanged: Unchanged, *, as_json: bool) -> None:
    """Say that nothing was to be done."""
    path = str(unchanged.checkpoint.origin.path)
    if as_json:
        print_json(
            {
                "schema": "zerotools.conversion/1",
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
        print_json({**_plan_json(conversion), "dry_run": True, "copies": copies})
        return
    _print_notes(conversion)
    click.echo(f"would write {conversion.destination}:")
    for name, file in conversion.target.files.items():
        click.echo(f"  {name}  {size(file.size)}")
    click.echo(
        f"{counted(len(conversion.target.checkpoint.tensors), 'tensor')}; "
        f"read {size(conversion.bytes_to_read)}, write {size(conversion.bytes_to_write)}; "
        f"at most {size(limits.max_total_bytes)} of buffers"
    )


def _plan_json(conversion: Conversion) -> dict[str, Any]:
    return {
        "schema": "zerotools.conversion/1",
        "source": str(conversion.source.origin.path),
        "destination": str(conversion.destination),
        "tensors": len(conversion.target.checkpoint.tensors),
        "bytes_to_read": conversion.bytes_to_read,
        "bytes_to_write": conversion.bytes_to_write,
        "files": [
            {"name": name, "bytes": file.size} for name, file in conversion.target.files.items()
        ],
        "notes": list(conversion.notes),
        "dropped": [{"what": each.what, "why": each.why} for each in conversion.target.dropped],
        "warnings": [*conversion.warnings, *filter(None, [conversion.lacking])],
    }


def _print_notes(conversion: Conversion) -> None:
    reasons: dict[str, list[str]] = {}
    for dropped in conversion.target.dropped:
        reasons.setdefault(dropped.why, []).append(dropped.what)
    for why, what in reasons.items():
        say("dropped", f"{', '.join(what)} ({why})")
    for note in conversion.notes:
        say("note", note)
    for warning in conversion.warnings:
        say("warning", f"{warning}; what is written here does not need it")
    if conversion.lacking is not None:
        say("warning", conversion.lacking)


def _losses_json(report: WriteReport) -> dict[str, Any]:
    return {
        "overflowed": [
            {"name": k.name, "role": k.role, "values": lost.overflowed, "largest": lost.largest}
            for k, lost in report.losses.items()
            if lost.overflowed
        ],
        "nonfinite": [
            {"name": k.name, "role": k.role, "nans": lost.nans, "infinities": lost.infinities}
            for k, lost in report.losses.items()
            if lost.nans or lost.infinities
        ],
    }


MAX_LOSSES = 20


def _print_losses(report: WriteReport) -> None:
    lines = []
    for key, lost in report.losses.items():
        if lost.overflowed:
            lines.append(
                f"{key}: {counted(lost.overflowed, 'value')} up to {lost.largest:g} became infinite"
            )
        if lost.nans or lost.infinities:
            lines.append(f"{key} holds {lost.nans} NaN and {lost.infinities} infinite values")
    for line in lines[:MAX_LOSSES]:
        say("note", line)
    if len(lines) > MAX_LOSSES:
        say("note", f"and {len(lines) - MAX_LOSSES} more (--json lists all)")


@contextmanager
def hint_at_resuming(conversion: Conversion) -> Iterator[None]:
    """Say what an interrupted run leaves, and how to continue it."""
    try:
        yield
    except KeyboardInterrupt:
        partial = partial_of(conversion.destination)
        if partial.exists():
            say("note", f"{partial} is kept; run the same command with --resume to continue")
        raise
