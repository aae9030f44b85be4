from __future__ import annotations

from importlib import import_module

import click
import pytest

from zerotools.cli.command_table import COMMANDS as ALL_COMMANDS
from zerotools.cli.options.click_options import CheckpointPath
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.make_conversion_job import (
    COMMANDS,
    PATH_OPTIONS,
    PATHS,
    refuse_relative_paths,
)


def test_paths_are_those_of_the_commands() -> None:
    options = set[str]()
    for name in COMMANDS:
        command: click.Command = import_module(ALL_COMMANDS[name].module).command
        paths = [each for each in command.params if isinstance(each.type, CheckpointPath)]
        assert sum(isinstance(each, click.Argument) for each in paths) == PATHS[name]
        files = [each for each in command.params if isinstance(each.type, click.Path)]
        options |= {
            opt for each in (*paths, *files) if isinstance(each, click.Option) for opt in each.opts
        }
    assert options == set(PATH_OPTIONS)


@pytest.mark.parametrize(
    "words",
    [
        "verify /a",
        "verify --fast /a",
        "consolidate /a /b --dtype bf16",
        "consolidate --dtype bf16 --adapter-only /a /b",
        "consolidate --dtype=bf16 --base=/base -- /a /b",
        "consolidate hf://owner/model s3://bucket/key --map /m.toml",
        "reshard /a /b --world-size 4",
    ],
)
def test_absolute_paths_and_urls_are_taken(words: str) -> None:
    refuse_relative_paths(words.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("verify a/b", "'a/b' is a relative path"),
        ("verify ~/a", "'~/a' is a relative path"),
        ("consolidate /a out --dtype bf16", "'out' is a relative path"),
        ("consolidate /a /b --map m.toml", "'m.toml' is a relative path"),
        ("consolidate /a /b --base=base", "'base' is a relative path"),
        ("consolidate -- /a out", "'out' is a relative path"),
        ("consolidate /a --adapter-only out", "takes 2 absolute paths, but 1 is given"),
        ("verify", "takes 1 absolute path, but 0 are given"),
    ],
)
def test_relative_paths_are_refused(words: str, why: str) -> None:
    with pytest.raises(BadRequest) as refused:
        refuse_relative_paths(words.split())
    assert why in str(refused.value)
