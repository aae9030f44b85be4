"""Options of the commands that put tensors into the layout of another program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.core.errors import BadRequest
from zerotools.ops.weights.layout_mapping import MapRequest

map_arg_option = click.option(
    "--map-arg",
    "map_args",
    multiple=True,
    metavar="NAME=NUMBER",
    help="A size for the map, in place of config.json's (vocab_multiple=128).",
)


def map_arguments(given: tuple[str, ...]) -> dict[str, int | bool]:
    """The sizes that `--map-arg` gives.

    Raises:
        BadRequest: one is not NAME=NUMBER.
    """
    found: dict[str, int | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if equals and value in ("true", "false"):
            found[name] = value == "true"
        elif equals and value.isdecimal() and len(value) < 16:
            found[name] = int(value)
        else:
            raise BadRequest(f"--map-arg {text!r} is not NAME=NUMBER")
    return found


def map_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add `--map-to` and what belongs to it; the command is given them as `mapping`, a
    `MapRequest`, or None."""

    @wraps(command)
    def collected(
        map_to: str | None,
        map_from: str | None,
        map_file: Path | None,
        map_args: tuple[str, ...],
        **given: Any,
    ) -> int | None:
        if map_to is None:
            for name, value in (("from", map_from), ("arg", map_args)):
                if value:
                    raise BadRequest(f"--map-{name} is for --map-to; add that, or leave it out")
            if map_file is not None:
                raise BadRequest("--map is for --map-to; add that, or leave it out")
            return command(**given, mapping=None)
        request = MapRequest(
            to=map_to, source=map_from, file=map_file, arguments=map_arguments(map_args)
        )
        return command(**given, mapping=request)

    options = (
        click.option(
            "--map-to",
            metavar="LAYOUT",
            help="Put the tensors into the layout of another program "
            "(hf, megatron, ...; see zerotools maps list).",
        ),
        click.option(
            "--map-from",
            metavar="LAYOUT",
            help="The layout that they have, where their names do not say it.",
        ),
        click.option(
            "--map",
            "map_file",
            type=CheckpointPath(),
            metavar="FILE",
            help="A layout map of your own (TOML), for --map-to.",
        ),
        map_arg_option,
    )
    for option in reversed(options):
        collected = option(collected)
    return collected
