"""The JSON that a command prints on stdout: one object, with its schema first.

    {"schema": "zerotools.cancel/1", "jobs": [...], "errors": [...]}

`render.print_json` sets the object. It is printed when the command is over, so that `errors` holds
whatever went wrong meanwhile. A command that prints nothing but errors answers with
`zerotools.error/1`. Commands that print while they run use `render.print_json_line`.
docs/reference/json.md describes the objects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zerotools.cli.command_table import COMMANDS

ERROR_SCHEMA = "zerotools.error/1"
_KEY = "zerotools.json_answer"


class JsonAnswer:
    """What one run of the command line prints as JSON. `errors` are `Failure.to_json()`."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self.is_asked = False
        self._text: str | None = None

    def set(self, tree: Mapping[str, Any]) -> None:
        """Print `tree`, which has its schema, when the command is over, if none is set later."""
        self.is_asked = True
        self._text = json.dumps(tree, indent=2)

    def write(self) -> None:
        """Print the object. If a command has none, print its errors on one line, as readers of JSON
        Lines expect."""
        if self._text is not None:
            if self.errors:
                last_key = json.dumps({"errors": self.errors}, indent=2).removeprefix("{")
                self._text = self._text.removesuffix("\n}") + "," + last_key
            sys.stdout.write(self._text + "\n")
        elif self.errors and self.is_asked:
            sys.stdout.write(json.dumps({"schema": ERROR_SCHEMA, "errors": self.errors}) + "\n")


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, also one that cannot be parsed."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def open_in(context: click.Context) -> JsonAnswer:
    """The answer of the command line that `context` belongs to, printed when that is over."""
    root = context.find_root()
    if _KEY not in root.meta:
        root.meta[_KEY] = answer = JsonAnswer()
        root.call_on_close(answer.write)
    found = root.meta[_KEY]
    assert isinstance(found, JsonAnswer)
    return found


def current() -> JsonAnswer | None:
    """The answer of the command that runs, or None outside of one."""
    context = click.get_current_context(silent=True)
    return None if context is None else open_in(context)


def enveloped(tree: Mapping[str, Any], context: click.Context) -> dict[str, Any]:
    """`tree` behind the schema of the command that runs."""
    name = context.command.name
    assert name is not None
    schema = schema_of(name)
    assert tree.get("schema", schema) == schema, f"zerotools {name} prints {tree['schema']}"
    return {"schema": schema, **tree}


def schema_of(name: str) -> str:
    """The schema of what the command `name` prints."""
    return f"zerotools.{name}/{COMMANDS[name].json_version}"
