"""`zerotools import`: the job file that a config of another launcher amounts to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from zerotools.cli.options.config_options import Configs, config_options, read_job_file
from zerotools.cli.options.grouped import LAUNCHERS, OUTPUT, GroupedCommand, option
from zerotools.cli.options.page_import import page_import
from zerotools.cli.options.script_import import Files, script_import
from zerotools.cli.options.shared import json_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine import Imported, JobFile
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.text.document import LARGEST_FILE, read_text, text_of
from zerotools.jobs.text.toml_text import to_toml

_CHOICES = {
    "model.path": "model.path, or model.config to start from random weights",
    "data.text": "data.text, data.tokens or data.examples",
    "train.steps": "train.steps or train.epochs",
}
"""The alternatives for missing keys."""


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
    "--as",
    "target",
    group=LAUNCHERS,
    type=click.Choice(["train", "script"]),
    default="train",
    show_default=True,
    help="Make a job to train the model with zerotools, or to run the program of the launch "
    'line unchanged (engine = "script").',
)
@option(
    "--block",
    "blocks",
    group=LAUNCHERS,
    callback=_numbers,
    metavar="N,...",
    help="Import these blocks of PAGE (a launch line and its configs), by their numbers in the "
    "list. For a script with several launch lines: the line with this number.",
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
    target: str,
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

    Standard error has the repairs, what happened to the keys of the config (mapped to a key of the
    job file, passed through to DeepSpeed, or ignored), in what the job differs from the program,
    and what to do next. --json has every key with its place.
    """
    if configs.lenient and not configs.any:
        raise BadRequest("--lenient is for a config, and a page is always repaired; leave it out")
    if configs.any and blocks and (configs.told.launch is None or len(blocks) > 1):
        raise BadRequest("--block is for a page or a script; leave it out, or the configs")
    closing = partial(_closing, output, target)
    files: Files = {}

    def finish(chosen: Configs, recipe: Recipe | None) -> Imported:
        if target == "train":
            return chosen.with_recipe(job, recipe, closing=closing)
        imported, texts = script_import(chosen, job, recipe, output, closing)
        files.update(texts)
        return imported

    job: JobFile | None = None
    if configs.any:
        job = None if job_file is None else read_job_file(job_file)
        imported = finish(configs, configs.recipe(blocks[0] if blocks else None))
    elif job_file is None:
        raise BadRequest(
            "no config to import was given; give a page, --deepspeed, --accelerate, --launch, "
            "--llamafactory or --axolotl"
        )
    else:
        imported = page_import(*_page(job_file), blocks, finish)
    if imported.problem is not None:
        raise imported.problem
    text = to_toml(imported.tree, imported.origins) + _missing(imported)
    if output is not None:
        for path, content in {**files, output: text}.items():
            _write(path, content)
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


def _closing(
    output: Path | None, target: str, imported: Imported, recipe: Recipe | None
) -> Iterator[str]:
    """Yield the next step with the job file, and the alternative command for the program."""
    name = "job.toml" if output is None else str(output)
    if output is None:
        yield f"-o {name} writes the job file"
    if imported.missing:
        yield f"add to {name}: {', '.join(imported.missing)}"
    yield f"zerotools submit --dry-run {name} && zerotools submit --follow {name}"
    if recipe is not None and recipe.program is not None:
        if target == "train":
            yield f"or run {recipe.program.name} itself: the same import with --as script"
        elif not recipe.findings.unsupported:
            yield "or train the model here: the same import with --as train"


def _page(name: str) -> tuple[str, str]:
    """Return (the text of a page, its name)."""
    if name != "-":
        return read_text(Path(name), "page"), name
    return text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input", "page"), "page"


def _missing(imported: Imported) -> str:
    if not imported.missing:
        return ""
    listed = "".join(
        f"#   {imported.formulas.get(key) or _CHOICES.get(key, key)}\n" for key in imported.missing
    )
    return f"\n# A job also needs these keys, which the import does not give:\n{listed}"


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadRequest(f"{output}: exists already; remove it, or name another file") from None
