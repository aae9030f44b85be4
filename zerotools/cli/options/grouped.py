"""Options in groups on a help page.

`@command("convert")` makes a command and `@option("--dtype", group=NAMES, ...)` an option of it,
with click's arguments. The help page lists each group under its title, in the order of `ORDER`.
Options without a group come last, under "General".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from zerotools.public.options.option import (
    GENERAL,
    NAMES,
    OPTIMIZER,
    OUTPUT,
    RESOURCES,
    TRAINING,
    WHAT,
    WHEN,
)

__all__ = ["GENERAL", "NAMES", "OUTPUT", "RESOURCES", "WHAT", "WHEN", "command", "option"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

JOB = "Job"
SELECTION = "Selection"
LAUNCHERS = "Settings of other launchers"
CLUSTER = "Slurm"
ORDER = (
    JOB,
    SELECTION,
    WHAT,
    NAMES,
    TRAINING,
    OPTIMIZER,
    LAUNCHERS,
    WHEN,
    CLUSTER,
    OUTPUT,
    RESOURCES,
    GENERAL,
)


class GroupedOption(click.Option):
    """An option that knows its group."""

    def __init__(self, *args: Any, group: str = GENERAL, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        assert group in ORDER, f"{group!r} is not in ORDER"
        self.group = group


class GroupedCommand(click.Command):
    """A command that lists its options by group. If all options are of one group, it has the usual
    single list."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for each group that has an option."""
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in ORDER}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            # From 8.5.1 on, click has a row for each argument, too.
            if row is not None and not isinstance(parameter, click.Argument):
                rows[getattr(parameter, "group", GENERAL)].append(row)
        filled = {group: listed for group, listed in rows.items() if listed}
        for group, listed in filled.items():
            with formatter.section(group if len(filled) > 1 else "Options"):
                formatter.write_dl(listed)


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], GroupedCommand]:
    """Return the decorator that makes a `GroupedCommand`, as `click.command` does."""
    return click.command(name, cls=GroupedCommand, **attributes)


def option(
    *declarations: str, group: str = GENERAL, **attributes: Any
) -> Callable[[_Decorated], _Decorated]:
    """Return the decorator that adds a `GroupedOption`, as `click.option` does."""
    return click.option(*declarations, cls=GroupedOption, group=group, **attributes)
