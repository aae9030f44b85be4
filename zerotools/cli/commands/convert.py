"""`zerotools convert`: the same checkpoint in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.conversion_options import (
    Writing,
    carry_out,
    conversion_options,
    say_unchanged,
)
from zerotools.cli.options.deepspeed_options import zero_options
from zerotools.cli.options.map_options import map_options
from zerotools.cli.options.part_options import part_options
from zerotools.cli.options.shared import (
    config_dir_option,
    layout_option,
    section_option,
    tag_option,
)
from zerotools.cli.options.sizes import ByteSize
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.writing.naming_styles import STYLES
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions.consolidate import DTYPES, refuse_overflow
from zerotools.ops.conversions.conversion import Unchanged
from zerotools.ops.conversions.convert import prepare, written_formats
from zerotools.ops.conversions.to_job import JOB, prepare_job
from zerotools.ops.conversions.weights_alone import KEEP
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.parts.share import OutputPart
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.ops.weights.layout_mapping import MapRequest

_PATH = CheckpointPath()


@click.command("convert")
@click.argument("path", type=_PATH)
@click.argument("out", type=_PATH)
@click.option(
    "--to",
    type=click.Choice([*written_formats(), JOB]),
    required=True,
    help="Format to write; job: what a job of zerotools resumes from.",
)
@tag_option
@layout_option
@section_option
@config_dir_option
@click.option(
    "--world-size",
    type=int,
    help="Ranks that will load it (deepspeed, dcp, job). Default: as many as saved it.",
)
@zero_options
@click.option(
    "--style",
    type=click.Choice(STYLES),
    help="Which names and directories to use (dcp). Default: torch.",
)
@click.option(
    "--dtype",
    type=click.Choice([KEEP, *DTYPES, *QUANTISERS]),
    help="Type of the floating-point weights (safetensors). Default: keep.",
)
@click.option(
    "--max-shard-size",
    "max_shard_bytes",
    type=ByteSize(),
    help="Largest file of tensors (safetensors, megatron). Default: 5GB.",
)
@click.option(
    "--expert-parallel",
    type=int,
    help="Expert-parallel ranks of the run that loads the optimizer (megatron). Default: as the "
    "source, else more than 1.",
)
@click.option("--lr", type=float, help="Learning rate, if the checkpoint has none.")
@click.option(
    "--betas",
    type=(float, float),
    metavar="B1 B2",
    help="Adam's betas, if the checkpoint has none.",
)
@click.option("--eps", type=float, help="Adam's eps, if the checkpoint has none.")
@click.option("--weight-decay", type=float, help="Weight decay, if the checkpoint has none.")
@click.option("--momentum", type=float, help="SGD's momentum, if the checkpoint has none.")
@click.option(
    "--order",
    type=_PATH,
    metavar="FILE",
    help="Names of the trained parameters, one per line, in the optimizer's order "
    "(deepspeed, job).",
)
@click.option("--force", is_flag=True, help="Rewrite even if nothing changes.")
@map_options
@conversion_options
@part_options
def command(
    path: Path,
    out: Path,
    to: str,
    tag: str | None,
    layout: Path | None,
    section: str | None,
    config_dir: Path | None,
    settings: WriteOptions,
    force: bool,
    mapping: MapRequest | None,
    how: Writing,
    part: OutputPart | None,
    **given: Any,
) -> None:
    """Write the checkpoint at PATH into OUT in another format, optimizer state included.

    PATH is a checkpoint, or the directory of a run: then its newest checkpoint is taken. What the
    format cannot hold is listed.
    """
    given |= {name: getattr(settings, name) for name in settings.given()}
    options = {name: value for name, value in given.items() if value is not None}
    if to == JOB and mapping is not None:
        raise BadRequest(
            "--map-to is not for --to job, as a job knows its model's own layout: convert with "
            "--map-to first, and convert that to a job"
        )
    if to == JOB:
        read = {"tag": tag, "layout": layout, "section": section}
        for_job = prepare_job(path, out, options, config_dir=config_dir, **read)
        carry_out(for_job, how, verb="convert", check=_refuse_overflow, part=part)
        return
    prepared = prepare(
        path,
        out,
        to,
        options,
        tag=tag,
        layout=layout,
        section=section,
        config_dir=config_dir,
        force=force,
        mapping=mapping,
    )
    if isinstance(prepared, Unchanged):
        say_unchanged(prepared, as_json=how.as_json)
        return
    carry_out(prepared, how, verb="convert", check=_refuse_overflow, part=part)


def _refuse_overflow(report: WriteReport) -> None:
    refuse_overflow(report, "use --dtype bf16 or fp32")
