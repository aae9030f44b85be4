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
import io
import os
import resource
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from zerotools.cli.command_table import COMMANDS
from zerotools.cli.lazy_command_group import LazyGroup, debug_option
from zerotools.cli.output import render
from zerotools.cli.output.colours import AUTO, CHOICES, colour_choice
from zerotools.cli.output.messages import null_stream
from zerotools.core.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from zerotools.version import version

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
