"""`zerotools reshard`: rewrite a checkpoint for another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import (
    CheckpointPath,
    GroupedCommand,
    json_option,
    options_of,
)
from zerotools.cli.output.convert_and_report import convert_and_report
from zerotools.public.reshard_checkpoint import ReshardKeywords, reshard


@click.command("reshard", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@click.argument("out", type=CheckpointPath())
@options_of(ReshardKeywords)
@json_option
def command(path: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Rewrite the checkpoint at PATH for another world size, optimizer state included, into OUT.

    PATH is a checkpoint, or the directory of a run, which stands for its newest checkpoint.
    """
    convert_and_report(reshard, path, out, given, as_json=as_json)
