"""`zerotools delta`: write the difference between two models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import CheckpointPath, GroupedCommand, options_of
from zerotools.cli.output import render
from zerotools.cli.output.convert_and_report import hint_at_resuming, is_in_parts, part_line
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.io.files.keep_freed_memory import keep_freed_memory
from zerotools.public.make_and_apply_deltas import DeltaKeywords, delta

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
    config.json keeps its names and its config. With --part, the run that completes the last part
    writes OUT.
    """
    is_piped = str(out) == "-"
    if as_json and is_piped:
        raise BadRequest(
            "the delta and the output of --json cannot both go to standard output; name a file "
            "as OUT, or leave --json out"
        )
    keep_freed_memory()
    with _hint(out, given), shown_progress() as progress:
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
    changed = found.changed / found.elements if found.elements else 0.0
    made = f"{render.size(found.delta_bytes)}: {changed:.2%} of {found.elements} elements changed"
    if found.part is not None and found.part.missing:
        click.echo(part_line(found.part, made.replace(":", " of the delta,", 1), str(out)))
        return
    if found.part is not None:
        click.echo(part_line(found.part, f"{render.size(found.part.bytes)} of B", str(out)))
    ratio = found.model_bytes / max(1, found.delta_bytes)
    click.echo(
        f"{made}; the model has {render.size(found.model_bytes)}, {ratio:.1f} times the size of "
        "the delta",
        err=is_piped,
    )


def _hint(out: Path, given: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return a context manager that, on Ctrl-C, prints which parts are kept."""
    return hint_at_resuming(out, "") if is_in_parts(given) else nullcontext()
