"""`zerotools convert`: write a checkpoint in another format."""

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
from zerotools.public.consolidate_and_convert import ConvertKeywords, convert


@click.command("convert", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@click.argument("out", type=CheckpointPath())
@options_of(ConvertKeywords)
@json_option
def command(path: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Write the checkpoint at PATH into OUT in another format, optimizer state included.

    PATH is a checkpoint, or the directory of a run, which stands for its newest checkpoint. Parts
    that the format cannot hold are listed.
    """
    convert_and_report(convert, path, out, given, as_json=as_json)
