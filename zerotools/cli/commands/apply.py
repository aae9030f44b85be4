"""`zerotools apply`: apply deltas to a model."""

from __future__ import annotations

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
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.public.apply_deltas import ApplyKeywords, apply


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
    OUT is a Hugging Face model; it appears complete, or not at all. If a DELTA is -, it is read
    from standard input. If A needed options for names and layout when the delta was made, give them
    again.
    """
    if not in_place and len(paths) < 2:
        raise BadRequest("name a delta and an output, or pass --in-place to change A itself")
    deltas, out = (paths, None) if in_place else (paths[:-1], paths[-1])
    with shown_progress() as progress:
        found = apply(a, deltas, out, progress=progress, **given)
    if as_json:
        render.print_json(found.to_json())
        return
    files = count_text(found.files, "file")
    click.echo(
        f"{found.destination}: {count_text(found.tensors, 'tensor')} in {files}, "
        f"{render.size(found.bytes_written)}; the digest of each block is the same as in model B"
    )
