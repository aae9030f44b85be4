from __future__ import annotations

import click
import pytest

from zerotools.cli.main import build
from zerotools.cli.options.click_options import GENERAL, JOB, ORDER, GroupedCommand, option

MOST_IN_ONE_LIST = 11


@click.command("toy", cls=GroupedCommand)
@click.argument("file")
@option("--later", help="Of no group.")
@option("--name", group=JOB, help="Of a group.")
@click.option("--plain", help="Of click itself.")
def toy(**_: object) -> None:
    """Do nothing."""


def sections(command: click.Command) -> dict[str, list[str]]:
    """Return the options of each list of a help page, by its title."""
    found: dict[str, list[str]] = {}
    for line in command.get_help(click.Context(command, terminal_width=100)).splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line[:-1]
            found[title] = []
        elif line.startswith("  ") and not line.startswith("   ") and found:
            found[title].append(line.split()[0].rstrip(","))
    return found


def test_options_are_listed_by_group_and_those_without_one_come_last() -> None:
    assert sections(toy) == {JOB: ["--name"], GENERAL: ["--later", "--plain", "--help"]}


def test_one_group_alone_is_a_plain_list() -> None:
    command = GroupedCommand("toy", params=[click.Option(["--plain"], help="A flag.")])
    assert sections(command) == {"Options": ["--plain", "--help"]}


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(AssertionError, match="'Others' is not in ORDER"):
        option("--name", group="Others")(lambda: None)


OF_JOBS = ("clean", "edit", "estimate", "import", "init", "logs", "monitor", "submit")
OF_CHECKPOINTS = ("consolidate", "convert", "diff", "reshard", "salvage", "serve", "thin", "verify")


@pytest.mark.parametrize("name", [*OF_JOBS, *OF_CHECKPOINTS])
def test_a_command_with_many_options_has_them_in_groups(name: str) -> None:
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    found = {title: listed for title, listed in sections(command).items() if title in ORDER}
    assert list(found)[-1] == GENERAL
    assert len(found) > 1
    assert max(map(len, found.values())) <= MOST_IN_ONE_LIST
    assert {"--json", "--debug"} <= {*found[GENERAL]}
