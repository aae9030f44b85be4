"""The JSON that a command prints on stdout: one object, with its schema first.

    {"schema": "zerotools.cancel/1", "jobs": [...], "errors": [...]}

`render.print_json` sets the object. It is printed at the end of the command, so that `errors` has
all errors. A command that only has errors prints `zerotools.error/1`. Commands that print while
they run use `render.print_json_line`. docs/reference/json.md describes the objects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zerotools.cli.command_table import COMMANDS, OLD_NAMES

ERROR_SCHEMA = "zerotools.error/1"
_KEY = "zerotools.json_answer"


class JsonAnswer:
    """The JSON output of one command. `errors` has the results of `Failure.to_json()`."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self.is_requested = False
        self._text: str | None = None

    def set(self, tree: Mapping[str, Any]) -> None:
        """Set the object that is printed at the end of the command. `tree` includes its schema."""
        self.is_requested = True
        self._text = json.dumps(tree, indent=2)

    def write(self) -> None:
        """Print the object. If no object was set, print the errors on one line, because the output
        of the command may be JSON Lines."""
        if self._text is not None:
            if self.errors:
                last_key = json.dumps({"errors": self.errors}, indent=2).removeprefix("{")
                self._text = self._text.removesuffix("\n}") + "," + last_key
            sys.stdout.write(self._text + "\n")
        elif self.errors and self.is_requested:
            sys.stdout.write(json.dumps({"schema": ERROR_SCHEMA, "errors": self.errors}) + "\n")


def is_requested(arguments: Sequence[str]) -> bool:
    """Return whether the arguments contain `--json`. This also works if click cannot parse them."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def open_in(context: click.Context) -> JsonAnswer:
    """Return the JSON answer of a command line. It is printed when `context` is closed."""
    root = context.find_root()
    if _KEY not in root.meta:
        root.meta[_KEY] = answer = JsonAnswer()
        root.call_on_close(answer.write)
    found = root.meta[_KEY]
    assert isinstance(found, JsonAnswer)
    return found


def current() -> JsonAnswer | None:
    """Return the JSON answer of the current command; None outside of a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else open_in(context)


def enveloped(tree: Mapping[str, Any], context: click.Context) -> dict[str, Any]:
    """Return `tree` with the key `schema` added as its first key, for the current command."""
    called = context.info_name
    name = called if called in OLD_NAMES else context.command.name
    assert name is not None
    schema = schema_of(name)
    assert tree.get("schema", schema) == schema, f"zerotools {name} prints {tree['schema']}"
    return {"schema": schema, **tree}


def schema_of(name: str) -> str:
    """Return the name of the schema of a command's JSON: `zerotools.cancel/1`."""
    return f"zerotools.{name}/{COMMANDS[name].json_version if name in COMMANDS else 1}"
