"""Options that import configs of other launchers, and the output on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from zerotools.cli.options.grouped import LAUNCHERS, option
from zerotools.cli.options.recipe_options import RECIPE_OPTIONS, RecipeOptions, named_file
from zerotools.cli.output.language import told
from zerotools.cli.output.render import clean
from zerotools.cli.output.wide_lines import has_wide, wrap_wide
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.accelerate.accelerate_yaml import YAML_KEYS
from zerotools.jobs.imports.combine import CONFIG, Imported, JobFile, import_configs
from zerotools.jobs.imports.reading.job_keys import look_up
from zerotools.jobs.imports.reading.report import (
    ENGLISH,
    FIRST,
    LATER,
    WIDTH,
    Wording,
    next_steps,
    render,
)
from zerotools.jobs.imports.recipes.accelerate_flags import joined
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.jobfile.parse import read_tree
from zerotools.jobs.launcher_keys.deepspeed_releases import NEWEST, Release, installed_release
from zerotools.jobs.text.document import LARGEST_FILE, Document, read_text, text_of
from zerotools.jobs.text.home_paths import expanded
from zerotools.jobs.text.json_text import parse_json
from zerotools.jobs.text.yaml_text import parse_yaml

Closing = Callable[[Imported, Recipe | None], Iterable[str]]
"""The next steps with an imported job."""


def _translated(text: str) -> str:
    return told(text, sys.stderr)


def _wrapped(line: str) -> Iterable[str]:
    if has_wide(line):
        return wrap_wide(line, WIDTH, first=FIRST, later=LATER)
    return ENGLISH.wrapped(line)


WORDING = Wording(_translated, _wrapped)
"""Reports in the language of the user."""


def write_report(lines: Iterable[str]) -> None:
    """Write lines of a report to standard error."""
    sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))


class Configs(NamedTuple):
    """The files that were named, and whether blog syntax is let pass."""

    deepspeed: Path | None
    accelerate: Path | None
    told: RecipeOptions
    lenient: bool
    written: Mapping[str, str] = MappingProxyType({})
    """Texts of files that a launch script writes, by their paths."""

    @property
    def any(self) -> bool:
        """True if a config was named."""
        return self.deepspeed is not None or self.accelerate is not None or self.told.any

    def recipe(self, number: int | None = None) -> Recipe | None:
        """Return the arguments that were named, if any; `number` chooses among the launch lines of
        a script. Raises as `RecipeOptions.recipe`."""
        return self.told.recipe(self.lenient, number)

    def imported(self, job: JobFile | None) -> Imported:
        """Return the job that `job` and these configs say; the report of it goes to stderr.

        Raises:
            BadRequest: a file that cannot be read.
            Unsupported: YAML, and PyYAML is not installed.
        """
        return self.with_recipe(job, self.recipe())

    def with_recipe(
        self, job: JobFile | None, recipe: Recipe | None, *, closing: Closing | None = None
    ) -> Imported:
        """Do the same as `imported` for arguments that were read. `closing` yields the next steps,
        for a command that prints the job file."""
        if recipe is not None:
            return self._with_files_of(recipe)._imported(job, recipe, closing)
        return self._imported(job, None, closing)

    def _with_files_of(self, recipe: Recipe) -> Configs:
        """Return these configs with those that the recipe names. Raises BadRequest: both name
        one."""
        deepspeed = named_file(recipe, recipe.deepspeed, "--deepspeed", self.deepspeed)
        accelerate = named_file(recipe, recipe.accelerate_file, "--accelerate", self.accelerate)
        return self._replace(
            deepspeed=deepspeed, accelerate=accelerate, written={**self.written, **recipe.documents}
        )

    def _imported(
        self, job: JobFile | None, recipe: Recipe | None, closing: Closing | None
    ) -> Imported:
        job, named = self._with_named(job)
        accelerate = None if self.accelerate is None else self._accelerate(self.accelerate)
        if recipe is not None and recipe.accelerate is not None:
            accelerate = joined(accelerate, recipe.accelerate)
        result = import_configs(
            job,
            recipe=recipe,
            deepspeed=None if named is None else self._deepspeed(named),
            accelerate=accelerate,
            load=self._named,
            release=_release(job),
        )
        files = [path for path in (named, self.accelerate) if path is not None]
        sources = [
            *([] if job is None else [job.source]),
            *([] if recipe is None else [recipe.source]),
            *map(str, files),
        ]
        lines = [
            f"# {' with '.join(sources)}",
            *render(result.findings, written=closing is not None, wording=WORDING),
        ]
        if result.changes:
            head = told("what DeepSpeed gets of it", sys.stderr)
            lines += [f"# {head}", *(f"#   {x}" for x in result.changes)]
        if result.problem is not None:
            return result
        ending = () if closing is None else closing(result, recipe)
        lines += next_steps(result.findings, ending, WORDING)
        write_report(lines)
        return result

    def _with_named(self, job: JobFile | None) -> tuple[JobFile | None, Path | None]:
        """Return the job file without the path of DeepSpeed's JSON, and that path.

        Raises:
            BadRequest: the command line names one, too.
        """
        config = None if job is None else look_up(job.tree, CONFIG)
        if job is None or not isinstance(config, str):
            return job, self.deepspeed
        if self.deepspeed is not None:
            raise BadRequest(
                f"{job.source}: {CONFIG} = {config}: cannot be combined with --deepspeed "
                f"{self.deepspeed}; remove one of them"
            )
        tree = dict(job.tree)
        tree["deepspeed"] = {k: v for k, v in tree["deepspeed"].items() if k != "config"}
        return replace(job, tree=tree), job.base_dir / expanded(config)

    def _deepspeed(self, path: Path) -> Document:
        if path.suffix in (".yaml", ".yml"):
            raise BadRequest(
                f"{path}: is YAML, and DeepSpeed's config is JSON; pass an accelerate config with "
                "--accelerate"
            )
        written = self.written.get(str(path))
        text = read_text(path, "DeepSpeed config") if written is None else written
        return parse_json(text, source=str(path), lenient=self.lenient)

    def _accelerate(self, path: Path) -> Document:
        written = self.written.get(str(path))
        text = read_text(path, "accelerate config") if written is None else written
        if path.suffix == ".json":
            return parse_json(text, source=str(path), lenient=self.lenient)
        return parse_yaml(text, source=str(path), lenient=self.lenient, keys=YAML_KEYS)

    def _named(self, name: str) -> Document:
        """Return a file that the accelerate config names: from the working directory, as accelerate
        does, or next to that config."""
        path = expanded(name)
        if self.accelerate is not None and not path.exists():
            beside = self.accelerate.parent / path
            path = beside if beside.exists() else path
        if not path.exists() and self.accelerate is None:
            raise BadRequest(f"deepspeed_config_file = {name}: is not found here; correct the path")
        if not path.exists():
            raise BadRequest(
                f"{self.accelerate}: deepspeed_config_file = {name}: is found neither here nor "
                f"next to {self.accelerate}; correct the path"
            )
        return self._deepspeed(path)


def _release(job: JobFile | None) -> Release:
    """Return the DeepSpeed of the job's Python; the newest known release if it has none."""
    python = None if job is None else look_up(job.tree, "python")
    found = installed_release(python if isinstance(python, str) else None)
    return NEWEST if found is None else found


def config_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options; the command is given them as `configs`."""

    @wraps(command)
    def collected(
        *,
        deepspeed: Path | None,
        accelerate: Path | None,
        launch: str | None,
        llamafactory: Path | None,
        axolotl: Path | None,
        lenient: bool,
        **given: Any,
    ) -> int:
        told = RecipeOptions(launch, llamafactory, axolotl)
        return command(**given, configs=Configs(deepspeed, accelerate, told, lenient))

    options = (
        option(
            "--deepspeed",
            group=LAUNCHERS,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take settings from DeepSpeed's JSON.",
        ),
        option(
            "--accelerate",
            group=LAUNCHERS,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take settings from accelerate's YAML.",
        ),
        *RECIPE_OPTIONS,
        option(
            "--lenient",
            group=LAUNCHERS,
            is_flag=True,
            help="Repair text copied from a web page (comments, commas, quotes, spaces, "
            "indentation), and show each repair.",
        ),
    )
    for add in reversed(options):
        add(collected)
    return collected


def read_job_file(name: str) -> JobFile:
    """Return the tree of the job file `name`, `-` for standard input.

    Raises:
        BadRequest: it cannot be read, or is neither TOML nor JSON.
    """
    if name == "-":
        source, directory = "standard input", Path.cwd()
        text = text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), source, "job file")
    else:
        source, directory = name, Path(name).absolute().parent
        text = read_text(Path(name), "job file")
    return JobFile(read_tree(text, source=source), source, directory, text)
