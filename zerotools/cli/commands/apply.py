"""`zerotools apply`: apply deltas to a model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import (
    OUTPUT,
    CheckpointPath,
    GroupedCommand,
    option,
    options_of,
)
from zerotools.cli.output import render
from zerotools.cli.output.convert_and_report import hint_at_resuming, is_in_parts, part_line
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.public.make_and_apply_deltas import ApplyKeywords, apply


@click.command("apply", cls=GroupedCommand)
@click.argument("a", type=CheckpointPath())
@click.argument(
    "paths",
    metavar="DELTA... [OUT]",
    nargs=-1,
    required=True,
    type=CheckpointPath(),
)
@option(
    "--in-place",
    group=OUTPUT,
    is_flag=True,
    help="Change the directory A itself instead of writing OUT.",
)
@options_of(ApplyKeywords)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.apply/1).")
def command(a: Path, paths: tuple[Path, ...], in_place: bool, as_json: bool, **given: Any) -> None:
    """Apply one DELTA, or several in order, to the model A, and write the directory OUT.

    A is a checkpoint of any format with the weights from which the first delta was made. Each delta
    is checked before anything is written, and each block is checked before and after its change.
    OUT is a Hugging Face model, on a disk or in an object store; it appears complete, or not at
    all. If a DELTA is -, it is read from standard input. If A needed options for names and layout
    when the delta was made, give them again.
    """
    if not in_place and len(paths) < 2:
        raise BadRequest(
            "a delta or the output is missing; name both, or pass --in-place to change A itself"
        )
    deltas, out = (paths, None) if in_place else (paths[:-1], paths[-1])
    flag = "" if is_in_parts(given) else "with --resume "
    hint = nullcontext() if out is None else hint_at_resuming(out, flag)
    with hint, shown_progress() as progress:
        found = apply(a, deltas, out, progress=progress, **given)
    if as_json:
        render.print_json(found.to_json())
        return
    for note in found.notes:
        print_message("note", note)
    if found.part is not None:
        files = count_text(len(found.part.files), "file")
        made = f"{render.size(found.part.bytes)} in {files}"
        click.echo(part_line(found.part, made, str(found.destination)))
        return
    files = count_text(found.files, "file")
    click.echo(
        f"{found.destination}: {count_text(found.tensors, 'tensor')} in {files}, "
        f"{render.size(found.bytes_written)}; the digest of each block is the same as in model B"
        + ", also when read back" * found.verified
        + (f"; digests in {found.manifest}" if found.manifest else "")
    )
