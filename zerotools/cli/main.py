"""The entry point: runs the command, and converts any error to one sentence and an exit status.

The exit status:

0    done
1    differences or damage found
2    bad request
3    bad file
4    unsupported
5    the daemon or a node is unreachable, or refuses
6    a followed job failed
7    a training does not fit
70   a defect of zerotools
71   the operating system refused (disk full, permission)
130  interrupted
141  the reader of our output has closed it
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

from zerotools.cli.command_table import (
    COMMANDS,
    JOBS,
    OLD_NAMES,
    SECTIONS,
    CommandEntry,
    epilog,
    suggest_commands,
)
from zerotools.cli.output import render
from zerotools.cli.output.colours import AUTO, CHOICES, colour_choice
from zerotools.cli.output.messages import HOST, null_stream
from zerotools.core.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from zerotools.version import version

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_MANY_FILES = 65536
_MANY_OBJECTS = 100_000

COMPLETION_VARIABLE = "_ZEROTOOLS_COMPLETE"

EXIT_CODES = """\b
Exit status:
  0  done                        5  daemon or node refuses, or is unreachable
  1  differences or damage       6  a followed job failed
  2  bad request                 7  estimate: it does not fit
  3  bad file                  130  interrupted
  4  unsupported"""


def build() -> LazyGroup:
    """Return the group of all commands of the command line, for click."""
    return LazyGroup(
        name="zerotools",
        entries=COMMANDS,
        help="Inspect, consolidate and reshard training checkpoints, and run training jobs "
        "from the queue of zerotoolsd.",
        epilog=EXIT_CODES,
        invoke_without_command=True,
        subcommand_metavar="COMMAND [ARGS]...",
        callback=_show_help,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                help="Show the version.",
                callback=_show_version,
            ),
            click.Option(
                ["--host"],
                metavar="ssh://HOST",
                help="Send the command (submit, queue, show, logs, cancel and others) to the "
                "daemon of another machine, by ssh.",
            ),
            click.Option(
                ["--color"],
                type=click.Choice(CHOICES),
                default=AUTO,
                show_default=True,
                expose_value=False,
                help="When to use colours. auto: on a terminal, if NO_COLOR is not set.",
                callback=_choose_colour,
            ),
            debug_option(),
        ],
    )


@click.pass_context
def _show_help(ctx: click.Context, host: str | None) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _choose_colour(ctx: click.Context, _parameter: click.Parameter, choice: str) -> None:
    ctx.with_resource(colour_choice(choice))


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"zerotools {version()}")
        ctx.exit()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and end the process with its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A command's objects live until its end: garbage collection is 4 % of `inspect`.
    gc.set_threshold(_MANY_OBJECTS)
    _allow_many_files()
    # The parent process closed it, because it does not read the output.
    if sys.stdout is None:
        sys.stdout = null_stream()
    if sys.stderr is None:
        sys.stderr = null_stream()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    status = run(build(), arguments)
    # The last collection of the interpreter looks at every object: that is 10 % of `inspect`.
    gc.freeze()
    sys.exit(status)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: a run has thousands of files, and
    1024 is the usual limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(group: click.Group, arguments: Sequence[str]) -> int:
    """Run the command line `group`, report an error on stderr, and return the exit status."""
    try:
        status = _invoke(group, list(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # the last output cannot be written
        return _reported(error, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _invoke(group: click.Group, arguments: list[str]) -> int:
    """Do the work of `click.Group.main`, without its handling of errors and exit codes."""
    if COMPLETION_VARIABLE in os.environ:
        group.main(arguments, prog_name="zerotools", complete_var=COMPLETION_VARIABLE)
    try:
        context = group.make_context("zerotools", list(arguments))
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except Exception as error:  # no command was found, so there is no context to report it in yet
        with click.Context(group, info_name="zerotools") as context:
            render.open_in(context).is_requested = render.is_requested(arguments)
            return _reported(error, arguments)
    with context:
        render.open_in(context).is_requested = render.is_requested(arguments)
        try:
            status = group.invoke(context)
        except click.exceptions.Exit as leaving:
            return leaving.exit_code
        except BrokenPipeError:
            raise
        except Exception as error:  # every error becomes one sentence and a status
            return _reported(error, arguments)
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        if status == EXIT_INTERRUPTED:
            from zerotools.cli.output.report_failure import INTERRUPTED, report

            report(INTERRUPTED)
        return status if isinstance(status, int) else 0


def _reported(error: Exception, arguments: Sequence[str]) -> int:
    """Report `error` on stderr and in the JSON answer; return its exit status."""
    if "--debug" in arguments:
        import traceback  # 2 ms at each start

        traceback.print_exc()
    from zerotools.cli.output.report_failure import failure_of, report  # 3 ms, only if needed

    failure = failure_of(error)
    report(failure)
    return failure.exit_code


# A click group that imports only the requested command.
#
# `zerotools inspect` should start as fast as `ls`. So neither the help page, nor completion, nor
# another command may import a module that it does not need.


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
        from click.shell_completion import CompletionItem  # for completion alone

        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
