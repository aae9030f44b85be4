"""Options that say how a training program was called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

from zerotools.cli.options.grouped import LAUNCHERS, option
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.axolotl import read_axolotl
from zerotools.jobs.imports.recipes.launch_line import read_launch
from zerotools.jobs.imports.recipes.llamafactory import read_llamafactory
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.text.document import LARGEST_FILE, Document, read_text, text_of
from zerotools.jobs.text.json_text import parse_json
from zerotools.jobs.text.yaml_text import parse_yaml

LINE = "the launch line"


class RecipeOptions(NamedTuple):
    """At most one of them."""

    launch: str | None = None
    llamafactory: Path | None = None
    axolotl: Path | None = None

    @property
    def any(self) -> bool:
        """True if one was given."""
        return any(given is not None for given in self)

    def recipe(self, lenient: bool, number: int | None = None) -> Recipe | None:
        """Return the contents of the given one; None: none was given. `number` chooses among
        several launch lines.

        Raises:
            BadRequest: several were given; a file or a line that cannot be read.
            Unsupported: YAML, and PyYAML is not installed.
        """
        given = [f"--{name}" for name, value in self._asdict().items() if value is not None]
        if len(given) > 1:
            raise BadRequest(f"{given[0]} and {given[1]} cannot be combined; leave one out")
        if self.launch is not None:
            return _launch(self.launch, lenient, number)
        if self.llamafactory is not None:
            document = _yaml(self.llamafactory, "LLaMA-Factory config", lenient)
            return read_llamafactory(document, self.llamafactory.parent)
        if self.axolotl is not None:
            document = _yaml(self.axolotl, "axolotl config", lenient)
            return read_axolotl(document, self.axolotl.parent)
        return None


def _launch(given: str, lenient: bool, number: int | None) -> Recipe:
    if not given.strip():
        raise BadRequest("--launch: is empty; give a launch line, or the script that has it")
    if given == "-":
        text = text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input", "script")
        return read_launch(
            text, "standard input", Path(), lines=True, lenient=lenient, number=number
        )
    path = Path(given)
    try:
        is_file = len(given) < 4096 and path.exists()
    except OSError:
        is_file = False
    if is_file:
        text = read_text(path, "script")
        return read_launch(text, given, path.parent, lines=True, lenient=lenient, number=number)
    if len(given.split()) == 1:
        raise BadRequest(f"{given}: is neither a script nor a launch line; correct it")
    return read_launch(
        given, LINE, Path(), lines="\n" in given.strip(), lenient=lenient, number=number
    )


def _yaml(path: Path, what: str, lenient: bool) -> Document:
    text = read_text(path, what)
    if path.suffix == ".json":
        return parse_json(text, source=str(path), lenient=lenient)
    return parse_yaml(text, source=str(path), lenient=lenient)


def named_file(
    recipe: Recipe, named: ConfigValue | None, option: str, given: Path | None
) -> Path | None:
    """Return the config that the recipe names, or `given`. One that is not found is an error in the
    findings of the recipe.

    Raises:
        BadRequest: both exist.
    """
    if named is None:
        return given
    if given is not None:
        raise BadRequest(
            f"{named.said} = {named.value}: cannot be combined with {option} {given}; remove one "
            "of them"
        )
    if not isinstance(named.value, str):
        recipe.findings.wrong.append(f"{named.said}: must be the path of a file; write it to one")
        return None
    if named.value in recipe.documents:
        return Path(named.value)
    path = recipe.found(named.value)
    if not path.exists():
        found = "is not found here"
        if recipe.beside != Path():
            found = f"is found neither here nor next to {recipe.source}"
        what = (
            f"{named.said} = {named.value}: {found}; correct the path, or import the page with "
            "both (zerotools import PAGE)"
        )
        recipe.findings.wrong.append(what)
        return None
    return path


RECIPE_OPTIONS = (
    option(
        "--launch",
        group=LAUNCHERS,
        metavar="LINE|FILE|-",
        help="Take settings from the command that starts a training program (deepspeed, torchrun, "
        "accelerate launch, python), or from a script with that command. Nothing is run.",
    ),
    option(
        "--llamafactory",
        group=LAUNCHERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take settings from LLaMA-Factory's YAML.",
    ),
    option(
        "--axolotl",
        group=LAUNCHERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take settings from axolotl's YAML.",
    ),
)
