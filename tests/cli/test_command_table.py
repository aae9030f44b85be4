"""Every command has examples, and accepts them."""

from __future__ import annotations

import shlex

import click
import pytest

from zerotools.cli.command_table import COMMANDS, EXAMPLES
from zerotools.cli.main import build


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(COMMANDS)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_a_command_that_can_be_typed(line: str) -> None:
    program, name, *arguments = shlex.split(line)
    assert (program, name in EXAMPLES, line in EXAMPLES[name]) == ("zerotools", True, True)
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    command.make_context(name, arguments)
    assert f"    {line}" in command.get_help(click.Context(command, terminal_width=80)).splitlines()
