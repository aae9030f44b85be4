"""A click group that imports only the requested command.

`zerotools inspect` should start as fast as `ls`. So neither the help page, nor completion, nor
another command may import a module that it does not need.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
from click.shell_completion import CompletionItem

from zerotools.cli.command_table import (
    JOBS,
    OLD_NAMES,
    SECTIONS,
    CommandEntry,
    epilog,
    suggest_commands,
)
from zerotools.cli.output.messages import HOST


def debug_option() -> click.Option:
    """Return the option `--debug`, which every command has. `cli.main` reads it from the
    arguments.
    """
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."
    )


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_ALL_THREADS = "OMP_NUM_THREADS"


@contextmanager
def _blas_without_threads() -> Iterator[None]:
    """Keep numpy's BLAS from starting threads if numpy is imported in this context.

    Such threads spin while they wait (0.1 s of a processor), and commands have threads of their
    own. If the user has set a number of threads, it is not changed. The setting is removed at the
    end of the context, so programs that the command starts later do not inherit it.
    """
    if _BLAS_THREADS in os.environ or _ALL_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


_AVERAGING = ("average", "blend", "interpolate", "lerp", "slerp", "soup", "swa")
ELSEWHERE = (
    "zerotools does not average models; use mergekit on the models that zerotools consolidate "
    "writes"
)


class LazyGroup(click.Group):
    """A click group with the commands of a table. The module of a command is imported when the
    command is used.
    """

    def __init__(self, *, entries: Mapping[str, CommandEntry], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]  # click's own keywords
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the table, without old names."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name` and return its `command`, with `--debug` added."""
        entry = self.entries.get(cmd_name) or OLD_NAMES.get(cmd_name)
        if entry is None:
            return None
        with _blas_without_threads():
            command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command), f"{entry.module}.command is not a command"
        if all(parameter.name != "debug" for parameter in command.params):
            command.params.append(debug_option())
        is_on_jobs = isinstance(entry, CommandEntry) and entry.section == JOBS
        command.epilog = command.epilog or epilog(cmd_name, is_on_jobs=is_on_jobs)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. For an unknown name, raise an error with similar
        names.
        """
        name = args[0]
        if (
            not (name in self.entries or name in OLD_NAMES or name.startswith("-"))
            and not ctx.resilient_parsing
        ):
            if name in _AVERAGING:
                raise click.UsageError(f"unknown command {name!r}: {ELSEWHERE}", ctx=ctx)
            near = suggest_commands(name, self.entries)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"unknown command {name!r}{hint}", ctx=ctx)
        resolved = super().resolve_command(ctx, args)
        if ctx.params.get(HOST) is not None and not ctx.resilient_parsing:
            self._refuse_local(ctx, name, resolved[1])
        if name in OLD_NAMES and not ctx.resilient_parsing:
            from zerotools.jobs.states import OLD_NAMES_END  # loaded for an old name alone

            old = f"the old name {name} works until {OLD_NAMES_END}"
            click.echo(f"note: zerotools {name} is now {OLD_NAMES[name].now}; {old}", err=True)
        return resolved

    def _refuse_local(self, ctx: click.Context, name: str, command: click.Command | None) -> None:
        """Raise an error if --host is given for a command that only reads this machine."""
        asks = command is not None and any(each.name == "socket" for each in command.params)
        entry = self.entries.get(name)
        if not asks or (entry is not None and entry.is_local):
            raise click.UsageError(
                f"--host is for commands that ask the daemon, but {name} works on this machine; "
                f"run {name} on the other machine: ssh -t HOST zerotools {name}",
                ctx=ctx,
            )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands to the help page, one list for each section."""
        width = max(map(len, self.entries), default=0)
        for section in SECTIONS:
            rows = [
                (name.ljust(width), entry.help)
                for name, entry in self.entries.items()
                if entry.section == section
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions: names of commands from the table, and options from the parameters."""
        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
