"""`zerotools reshard`: the same checkpoint for another number of ranks."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.conversion_options import (
    Writing,
    carry_out,
    conversion_options,
    say_unchanged,
)
from zerotools.cli.options.deepspeed_options import zero_options
from zerotools.cli.options.part_options import part_options
from zerotools.cli.options.shared import tag_option
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions.conversion import Unchanged
from zerotools.ops.conversions.reshard import prepare
from zerotools.ops.execution.parts.share import OutputPart


@click.command("reshard")
@click.argument("path", type=CheckpointPath())
@click.argument("out", type=CheckpointPath())
@tag_option
@click.option("--world-size", type=int, required=True, help="Ranks that will load it.")
@zero_options
@click.option("--force", is_flag=True, help="Rewrite even if nothing changes.")
@conversion_options
@part_options
def command(
    path: Path,
    out: Path,
    tag: str | None,
    world_size: int,
    settings: WriteOptions,
    force: bool,
    how: Writing,
    part: OutputPart | None,
) -> None:
    """Rewrite the checkpoint at PATH for another world size, optimizer state included, into OUT.

    PATH is a checkpoint, or the directory of a run: then its newest checkpoint is taken.
    """
    prepared = prepare(path, out, world_size=world_size, options=settings, force=force, tag=tag)
    if isinstance(prepared, Unchanged):
        say_unchanged(prepared, as_json=how.as_json)
        return
    carry_out(prepared, how, verb="reshard", part=part)
