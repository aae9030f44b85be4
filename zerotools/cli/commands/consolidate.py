"""`zerotools consolidate`: one set of weights that loads anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.conversion_options import Writing, carry_out, conversion_options
from zerotools.cli.options.export_options import (
    allow_overflow_option,
    dtype_option,
    format_option,
    keep_aliases_option,
    max_shard_size_option,
    name_options,
    weights_from_option,
)
from zerotools.cli.options.map_options import map_options
from zerotools.cli.options.part_options import part_options
from zerotools.cli.options.shared import (
    config_dir_option,
    layout_option,
    section_option,
    tag_option,
)
from zerotools.ops.conversions.consolidate import (
    Options,
    prepare,
    refuse_overflow,
)
from zerotools.ops.execution.parts.share import OutputPart
from zerotools.ops.weights.layout_mapping import MapRequest


@click.command("consolidate")
@click.argument("path", type=CheckpointPath())
@click.argument("out", type=CheckpointPath())
@tag_option
@layout_option
@section_option
@config_dir_option
@dtype_option
@max_shard_size_option
@weights_from_option("Export")
@name_options()
@click.option(
    "--like",
    type=CheckpointPath(),
    metavar="DIR",
    help="Check against this model's names, shapes and types before anything is written.",
)
@format_option
@click.option(
    "--adapter-only",
    is_flag=True,
    help="Export the PEFT adapter of the run alone, as PEFT's save_pretrained writes it.",
)
@click.option(
    "--adapter-config",
    type=CheckpointPath(),
    metavar="FILE|DIR",
    help="The adapter's adapter_config.json, where the run does not say it.",
)
@click.option("--adapter-name", metavar="NAME", help="Which adapter, if the run has several.")
@click.option(
    "--base",
    type=CheckpointPath(),
    metavar="DIR",
    help="The base model of adapters that a job saved alone, where it is not where the job had it.",
)
@keep_aliases_option
@allow_overflow_option
@map_options
@conversion_options
@part_options
def command(
    path: Path,
    out: Path,
    tag: str | None,
    layout: Path | None,
    config_dir: Path | None,
    section: str | None,
    dtype: str,
    max_shard_bytes: int,
    weights_from: str,
    strip_prefix: tuple[str, ...],
    rename: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    like: Path | None,
    format: str,
    adapter_only: bool,
    adapter_config: Path | None,
    adapter_name: str | None,
    base: Path | None,
    keep_aliases: bool,
    allow_overflow: bool,
    mapping: MapRequest | None,
    how: Writing,
    part: OutputPart | None,
) -> None:
    """Merge the checkpoint at PATH into a Hugging Face model in the directory OUT.

    PATH is a checkpoint, or the directory of a run: then its newest checkpoint is taken. With
    --adapter-only OUT gets adapter_model.safetensors and adapter_config.json.
    """
    options = Options(
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
        weights_from=weights_from,
        strip_prefix=strip_prefix,
        rename=rename,
        include=include,
        exclude=exclude,
        like=like,
        format=format,
        keep_aliases=keep_aliases,
        adapter_only=adapter_only,
        adapter_config=adapter_config,
        adapter_name=adapter_name,
        base=base,
        mapping=mapping,
    )
    carry_out(
        prepare(
            path,
            out,
            options,
            tag=tag,
            layout=layout,
            section=section,
            config_dir=config_dir,
        ),
        how,
        verb="consolidate",
        check=(lambda _: None) if allow_overflow else refuse_overflow,
        part=part,
    )
