"""`zerotools delta`: write the difference between two models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import CheckpointPath, GroupedCommand, options_of
from zerotools.cli.output import render
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.public.apply_deltas import DeltaKeywords, delta

_PATH = CheckpointPath()


@click.command("delta", cls=GroupedCommand)
@click.argument("a", type=_PATH)
@click.argument("b", type=_PATH)
@click.argument("out", type=_PATH)
@options_of(DeltaKeywords)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.delta/1).")
def command(a: Path, b: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Write the changes from model A to model B to the file OUT, for zerotools apply.

    A and B are checkpoints of any format and number of ranks. The delta covers the weights as
    consolidate would write them, and the config and tokenizer of B, but no optimizer state. It has
    digests of both models. OUT is a file, an object of a store, or - for the standard output.
    Options for names and layout are for A and B, but a directory of safetensors that fits its
    config.json keeps its names and its config.
    """
    is_piped = str(out) == "-"
    if as_json and is_piped:
        raise BadRequest(
            "the delta and the output of --json cannot both go to standard output; name a file "
            "as OUT, or leave --json out"
        )
    with shown_progress() as progress:
        found = delta(a, b, out, progress=progress, **given)
    if as_json:
        render.print_json(found.to_json())
        return
    for note in found.notes:
        print_message("note", note)
    if found.new_tensors:
        print_message(
            "note",
            f"{count_text(len(found.new_tensors), 'tensor')} only in B, stored whole",
        )
    part = found.changed / found.elements if found.elements else 0.0
    ratio = found.model_bytes / max(1, found.delta_bytes)
    click.echo(
        f"{render.size(found.delta_bytes)}: {part:.2%} of {found.elements} elements changed; "
        f"the model has {render.size(found.model_bytes)}, {ratio:.1f} times the size of the delta",
        err=is_piped,
    )
