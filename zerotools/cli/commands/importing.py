"""`zerotools import`: the job file that a config of another launcher amounts to."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from zerotools.cli.options.config_options import Configs, config_options, read_job_file
from zerotools.cli.options.grouped import LAUNCHERS, OUTPUT, GroupedCommand, option
from zerotools.cli.options.page_import import page_import
from zerotools.cli.options.shared import json_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine import Imported
from zerotools.jobs.text.document import LARGEST_FILE, read_text, text_of
from zerotools.jobs.text.toml_text import to_toml

_CHOICES = {
    "model.path": "model.path, or model.config to start from random weights",
    "data.text": "data.text, data.tokens or data.examples",
    "train.steps": "train.steps or train.epochs",
}
"""What serves in the place of a key that is missing."""


def _numbers(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, ...]:
    parts = [] if given is None else given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter("must be whole numbers with commas between them, as in 1,3")
    return tuple(int(part) for part in parts)


@click.command("import", cls=GroupedCommand)
@click.argument(
    "job_file", metavar="[JOBFILE|PAGE]", required=False, type=click.Path(allow_dash=True)
)
@config_options
@option(
    "--block",
    "blocks",
    group=LAUNCHERS,
    callback=_numbers,
    metavar="N,...",
    help="Import these blocks of PAGE, by the numbers that are listed: a launch line, its configs.",
)
@option(
    "-o",
    "--output",
    group=OUTPUT,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the job file there; it must not exist.  [default: standard output]",
)
@json_option
def command(
    job_file: str | None,
    configs: Configs,
    blocks: tuple[int, ...],
    output: Path | None,
    as_json: bool,
) -> int:
    """Print the job file for a config, or for the command that starts a training program.

    PAGE is a web page that was saved as text, Markdown or HTML, or - for standard input: its launch
    line and configs are found, repaired as with --lenient, and imported together.

    JOBFILE has the keys that the config lacks (model, data, steps), and values for "auto". If both
    have a key, they must agree. Without JOBFILE, missing keys are listed. A launch line and the
    YAML of LLaMA-Factory or axolotl have model, data and steps, and name the configs that belong to
    them.

    For every key of the config, standard error has the result and the reason: mapped to a key of
    the job file, passed through to DeepSpeed, or ignored.
    """
    if configs.lenient and not configs.any:
        raise BadRequest("--lenient is for a config, and a page is always repaired; leave it out")
    if configs.any and blocks:
        raise BadRequest("--block is for a page; leave it out, or the configs")
    if configs.any:
        imported = configs.imported(None if job_file is None else read_job_file(job_file))
    elif job_file is None:
        raise BadRequest(
            "there is no config to import; give a page, --deepspeed, --accelerate, --launch, "
            "--llamafactory or --axolotl"
        )
    else:
        imported = page_import(*_page(job_file), blocks)
    if imported.problem is not None:
        raise imported.problem
    text = to_toml(imported.tree, imported.origins) + _missing(imported)
    if output is not None:
        _write(output, text)
    if as_json:
        render.print_json(
            {
                "job": imported.tree,
                "missing": list(imported.missing),
                "origins": dict(imported.origins),
                "deepspeed": imported.deepspeed,
                **imported.findings.to_json(),
            }
        )
    elif output is None:
        sys.stdout.write(text)
    return 0


def _page(name: str) -> tuple[str, str]:
    """(the text of a page, its name)."""
    if name != "-":
        return read_text(Path(name), "page"), name
    return text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input", "page"), "page"


def _missing(imported: Imported) -> str:
    if not imported.missing:
        return ""
    listed = "".join(f"#   {_CHOICES.get(key, key)}\n" for key in imported.missing)
    return f"\n# A job also needs these keys, which nothing here says:\n{listed}"


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadRequest(f"{output}: exists already; remove it, or name another file") from None
