"""A launch line converted to a job for its program, with the configs that the program reads."""

from __future__ import annotations

from pathlib import Path

from zerotools.cli.options.config_options import WORDING, Closing, Configs, write_report
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.imports.accelerate.accelerate_yaml import YAML_KEYS
from zerotools.jobs.imports.combine import Imported, JobFile
from zerotools.jobs.imports.reading.report import Findings, next_steps, note_mends, render
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.imports.script_job import import_script
from zerotools.jobs.text.document import Document, read_text
from zerotools.jobs.text.json_text import parse_json
from zerotools.jobs.text.yaml_text import parse_yaml

Files = dict[Path, str]
"""Texts that belong to a job, by the files that they are written to."""


def script_import(
    configs: Configs,
    job: JobFile | None,
    recipe: Recipe | None,
    output: Path | None,
    closing: Closing,
) -> tuple[Imported, Files]:
    """Return a job for the program of `recipe`, and the files to write with the job file
    `output`: configs in a page or in the script itself, or repaired ones.

    Raises:
        BadRequest: a program is not found, or a config cannot be read.
    """
    if recipe is None:
        raise BadRequest("--as script needs the command of a program; give it with --launch")
    findings = Findings(accepted=list(recipe.findings.accepted))
    files: Files = {}
    paths: dict[str, Path] = {}
    for named in (recipe.deepspeed, recipe.accelerate_file):
        text = None if named is None else _text_to_write(configs, recipe, named, findings)
        if named is None or text is None:
            continue
        name = str(named.value)
        if output is None:
            findings.steps.append(f"save the text of {name} above as {name}")
            continue
        path = (output.parent / f"{output.stem}-{Path(name).name}").absolute()
        files[path], paths[name] = text, path
        findings.steps.append(f"the program reads {path.name}, next to the job file, as {name}")
    imported = import_script(job, recipe, paths, findings)
    if imported.problem is None:
        lines = [f"# {recipe.source}", *render(findings, written=True, wording=WORDING)]
        write_report([*lines, *next_steps(findings, closing(imported, recipe), WORDING)])
    return imported, files


def _text_to_write(
    configs: Configs, recipe: Recipe, named: ConfigValue, findings: Findings
) -> str | None:
    """Return the text of a config that no file has as the program can read it; None: a file has
    it."""
    name = str(named.value)
    path = recipe.found(name)
    held = {**configs.written, **recipe.documents}.get(name)
    if held is None and not path.exists():
        if named is recipe.deepspeed and Path(name).suffix not in (".json", ".yaml", ".yml"):
            return None  # a name that the program itself knows
        what = f"{named.said} = {name}: is not found here; correct the path, or import there"
        findings.wrong.append(what)
        return None
    text = read_text(path, "config") if held is None else held
    document = _parsed(text, name, configs.lenient)
    note_mends(findings, document)
    if document.mended is None and held is None:
        return None
    if document.mended is None:
        findings.mended.setdefault(name, text)
    return document.mended or text


def _parsed(text: str, name: str, lenient: bool) -> Document:
    if Path(name).suffix in (".yaml", ".yml"):
        try:
            return parse_yaml(text, source=name, lenient=lenient, keys=YAML_KEYS)
        except Unsupported:  # without PyYAML it is left as it is
            return Document(name, {}, {})
    return parse_json(text, source=name, lenient=lenient)
