"""`zerotools consolidate`: merge a sharded checkpoint into a Hugging Face model."""

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
from zerotools.public.consolidate_and_convert import ConsolidateKeywords, consolidate


@click.command("consolidate", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@click.argument("out", type=CheckpointPath())
@options_of(ConsolidateKeywords)
@json_option
def command(path: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Merge the checkpoint at PATH into a Hugging Face model in the directory OUT.

    PATH is a checkpoint, or the directory of a run, which stands for its newest checkpoint. A LoRA
    adapter is merged into its base model, from the run or from --base. With --adapter-only OUT gets
    adapter_model.safetensors and adapter_config.json.
    """
    convert_and_report(consolidate, path, out, given, as_json=as_json)
