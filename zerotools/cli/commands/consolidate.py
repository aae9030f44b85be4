"""`zerotools consolidate`: one set of weights that loads anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from zerotools.cli.options.conversion_options import Writing, carry_out, conversion_options
from zerotools.cli.options.shared import (
    config_dir_option,
    layout_option,
    section_option,
    tag_option,
)
from zerotools.cli.options.sizes import ByteSize
from zerotools.ops.conversions.consolidate import (
    DTYPES,
    Options,
    exported_formats,
    prepare,
    refuse_overflow,
)
from zerotools.ops.weights.selection import MASTERS, WEIGHTS


@click.command("consolidate")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@tag_option
@layout_option
@section_option
@config_dir_option
@click.option(
    "--dtype",
    type=click.Choice(["auto", *DTYPES]),
    default="auto",
    show_default=True,
    help="Type of the floating-point weights; auto is the 16-bit type of the run.",
)
@click.option(
    "--max-shard-size",
    type=ByteSize(),
    default="5GB",
    show_default=True,
    help="Largest weights file.",
)
@click.option(
    "--from",
    "weights_from",
    type=click.Choice([MASTERS, WEIGHTS]),
    default=MASTERS,
    show_default=True,
    help="Export the fp32 masters, if there are any, or the 16-bit weights.",
)
@click.option(
    "--strip-prefix",
    multiple=True,
    metavar="PREFIX",
    help="Remove this prefix from the names that begin with it.",
)
@click.option(
    "--rename",
    multiple=True,
    metavar="REGEX=REPL",
    help="Replace in every name, after --strip-prefix.",
)
@click.option("--include", multiple=True, metavar="GLOB", help="Export only these (new) names.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these (new) names out.")
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Check against this model's names, shapes and types before anything is written.",
)
@click.option(
    "--format",
    type=click.Choice(list(exported_formats())),
    default=Options.format,
    show_default=True,
    help="Files to write; torch is pytorch_model.bin.",
)
@click.option(
    "--adapter-only",
    is_flag=True,
    help="Export the PEFT adapter of the run alone, as PEFT's save_pretrained writes it.",
)
@click.option(
    "--adapter-config",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="The adapter's adapter_config.json, where the run does not say it.",
)
@click.option("--adapter-name", metavar="NAME", help="Which adapter, if the run has several.")
@click.option("--keep-aliases", is_flag=True, help="Write tied weights under each of their names.")
@click.option("--allow-overflow", is_flag=True, help="Let weights become infinite in fp16.")
@conversion_options
def command(
    path: Path,
    out: Path,
    tag: str | None,
    layout: Path | None,
    config_dir: Path | None,
    section: str | None,
    dtype: str,
    max_shard_size: int,
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
    keep_aliases: bool,
    allow_overflow: bool,
    how: Writing,
) -> None:
    """Merge the checkpoint at PATH into a Hugging Face model in the directory OUT.

    PATH is a checkpoint, or the directory of a run: then its newest checkpoint is taken. With
    --adapter-only OUT gets adapter_model.safetensors and adapter_config.json.
    """
    options = Options(
        dtype=dtype,
        max_shard_bytes=max_shard_size,
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
    )
