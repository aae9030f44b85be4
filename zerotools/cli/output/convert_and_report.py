"""Runs a function that writes a checkpoint, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.cli.output.render import duration, print_json, size, spans
from zerotools.core.counts_and_sizes import count_text
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.staging import partial_of
from zerotools.public.run_conversion import ConversionResult, Losses, PartResult

MAX_LOSSES = 20


def convert_and_report(
    function: Callable[..., ConversionResult],
    path: Path,
    out: Path,
    given: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Call `function` with the options `given` of its command, show the progress, and print the
    result.
    """
    flag = "" if is_in_parts(given) else "with --resume "
    with hint_at_resuming(out, flag), shown_progress() as progress:
        done = function(path, out, progress=progress, **given)
    if as_json:
        print_json(done.to_json())
        return
    print_notes(done)
    for note in done.report_notes:
        print_message("note", note)
    print_losses(done.losses)
    if done.unchanged:
        click.echo(
            f"{done.source} already has this layout for "
            f"{count_text(done.world_size or 0, 'rank')}; "
            "nothing was written (--force rewrites it)"
        )
    elif done.part is not None:
        click.echo("\n".join(_part_lines(done)))
    elif done.dry_run:
        click.echo("\n".join(_plan_lines(done)))
    else:
        click.echo(_written_line(done))


def is_in_parts(given: Mapping[str, Any]) -> bool:
    """Return whether the options `given` select a part."""
    return given["part"] is not None or given["part_from"] is not None


def _written_line(done: ConversionResult) -> str:
    took = f"{done.seconds:.1f} s" if done.seconds < 60 else duration(done.seconds)
    files, tensors = count_text(len(done.files), "file"), count_text(done.tensors, "tensor")
    line = f"wrote {done.destination}: {tensors}, {size(done.bytes_to_write)} in {files}, {took}"
    if done.resumed:
        line += f"; {len(done.resumed)} of them were complete before"
    if done.verified:
        line += f"; verified against the source, digests in {done.manifest}"
    return line


def _plan_lines(done: ConversionResult) -> Iterator[str]:
    yield f"would write {done.destination}:"
    yield from (f"  {name}  {size(count)}" for name, count in done.files.items())
    yield (
        f"{count_text(done.tensors, 'tensor')}; read {size(done.bytes_to_read)}, write "
        f"{size(done.bytes_to_write)}; at most {size(done.buffer_bytes)} of memory for buffers"
    )


def _part_lines(done: ConversionResult) -> Iterator[str]:
    part = done.part
    assert part is not None
    files = count_text(len(part.files), "file")
    if part.missing is None:
        yield f"{part} would write {size(part.bytes)} of {done.destination}, in {files}:"
        for each in part.files:
            is_whole = (each.begin, each.end) == (0, done.files[each.name])
            of_it = "" if is_whole else f"  bytes {each.begin} to {each.end} of the file"
            yield f"  {each.name}  {size(each.end - each.begin)}{of_it}"
        return
    yield part_line(part, f"{size(part.bytes)} in {files}", str(done.destination))


def part_line(part: PartResult, made: str, output: str) -> str:
    """Return the sentence about a complete part. `made` has its size and number of files."""
    said = f"{part} is complete: {made}"
    if part.missing:
        return (
            f"{said}; {output} is ready when all parts are complete; incomplete parts: "
            f"{spans(part.missing)}"
        )
    return f"{said}; all other parts are complete too, and {output} is ready"


def print_notes(done: ConversionResult) -> None:
    """Print the notes and warnings of a conversion, and the parts of the source that were
    dropped.
    """
    reasons: dict[str, list[str]] = {}
    for dropped in done.dropped:
        reasons.setdefault(dropped.why, []).append(dropped.what)
    for why, what in reasons.items():
        print_message("dropped", f"{', '.join(what)} ({why})")
    for note in done.notes:
        print_message("note", note)
    for warning in done.warnings:
        print_message("warning", f"{warning}; this output does not need that file")
    if done.lacking is not None:
        print_message("warning", done.lacking)


def print_losses(losses: tuple[Losses, ...]) -> None:
    """Print the tensors with values that the cast made infinite, or that were not finite before."""
    lines = []
    for lost in losses:
        if lost.overflowed:
            lines.append(
                f"{lost}: {count_text(lost.overflowed, 'value')} up to {lost.largest:g} became "
                "infinite"
            )
        if lost.nans or lost.infinities:
            lines.append(f"{lost} holds {lost.nans} NaN and {lost.infinities} infinite values")
    for line in lines[:MAX_LOSSES]:
        print_message("note", line)
    if len(lines) > MAX_LOSSES:
        print_message("note", f"and {len(lines) - MAX_LOSSES} more (--json lists all)")


@contextmanager
def hint_at_resuming(destination: Path, flag: str = "with --resume ") -> Iterator[None]:
    """Inside this context, print on Ctrl-C where the unfinished output is kept, and how to
    continue.

    `flag` is the option that the same command needs in order to continue.
    """
    try:
        yield
    except KeyboardInterrupt:
        partial = partial_of(destination)
        if isinstance(destination, RemotePath):
            partial = destination
            partial.forget()
        if partial.exists():
            print_message("note", f"{partial} is kept; run the same command {flag}to continue")
        raise
