"""Options of click, with our groups and types.

`@command("convert")` makes a command. `@option("--dtype", group=NAMES, ...)` adds an option to it,
with click's arguments. `@options_of(ConvertKeywords)` adds all options that a function of
`zerotools.public` declares. The help page lists each group under its title, in the order of
`ORDER`; options without a group come last, under "General".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zerotools.cli.output.messages import HOST
from zerotools.cli.output.pager import AUTO, NEVER
from zerotools.core.counts_and_sizes import bytes_of
from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import path_of
from zerotools.public.command_options.declare_and_bind_options import (
    GENERAL,
    NAMES,
    OPTIMIZER,
    OUTPUT,
    RESOURCES,
    TRAINING,
    WHAT,
    WHEN,
    DeclaredOption,
    OptionKind,
    declared_options,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
    """An option with the name of its group."""

    def __init__(self, *args: Any, group: str = GENERAL, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        assert group in ORDER, f"{group!r} is not in ORDER"
        self.group = group


class GroupedCommand(click.Command):
    """A command that lists its options by group. If all options are in one group, there is a single
    list.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Each usage error names this command, for a reference to its help."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

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


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Converts `30d`, `12h` or a number to seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from zerotools.jobs.binding.durations import seconds_of  # only if the option is given

        try:
            return seconds_of(int(value) if value.isascii() and value.isdecimal() else value)
        except ValueError as error:
            option = param.opts[0] if param is not None else "the time"
            raise BadRequest(f"{option} {value}: {error}") from None


class ByteSize(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Converts a size to bytes: `5GB` is 5 * 10^9, `1GiB` is 2^30, and a number without unit counts
    bytes.
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return bytes_of(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class CheckpointPath(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Converts the text to a path on this machine, or to a `StorePath` if it is the URL of a
    store.
    """

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return path_of(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete names of files on this machine."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


_Command = TypeVar("_Command", bound=Callable[..., Any])


def given_as(name: str, kind: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that collects some options of a command in one parameter `name`.

    The parameter is an instance of the dataclass `kind`. Each of its fields gets the value of the
    option with the same name.
    """

    def gather(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_one(*arguments: Any, **given: Any) -> Any:
            own = {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
            return command(*arguments, **{name: kind(**own)}, **given)

        return with_one

    return gather


def html_option(function: _Decorated) -> _Decorated:
    """Add `--html FILE`, with the keyword `html`, to a command."""
    return option(
        "--html",
        group=OUTPUT,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the result as an HTML page with pictures, to open in a browser.",
    )(function)


def options_of(declaration: type) -> Callable[[_Command], _Command]:
    """Return a decorator that adds to a command all options that the TypedDict `declaration`
    declares.

    The command gets the values as keyword arguments, under the names that the Python function has.
    """

    def add(command: _Command) -> _Command:
        for each in reversed(declared_options(declaration).values()):
            command = option(
                *filter(None, (each.option.short, each.flag)),
                each.keyword,
                group=each.option.group,
                help=each.option.help,
                metavar=each.option.metavar,
                required=each.is_required,
                **_attributes(each),
            )(command)
        return command

    return add


def _attributes(each: DeclaredOption) -> dict[str, Any]:
    """Return the arguments for `click.option` that depend on the kind of the option."""
    kind, default = each.kind, each.default
    if kind is OptionKind.FLAG:
        return {"is_flag": True, "default": default}
    if kind is OptionKind.WORDS:
        chosen = {"type": click.Choice(each.choices)} if each.choices else {}
        return {"multiple": True, **chosen}
    if kind is OptionKind.PATH_OR_FLAG:
        return {"is_flag": False, "flag_value": ""}
    shown = {} if default is None else {"default": default, "show_default": True}
    return {"type": _type(each), **shown}


def _type(each: DeclaredOption) -> Any:
    least, most = each.option.least, each.option.most
    match each.kind:
        case OptionKind.CHOICE:
            return click.Choice([str(choice) for choice in each.choices])
        case OptionKind.SWITCH:
            return click.Choice(["on", "off"])
        case OptionKind.INTEGER if least is not None or most is not None:
            return click.IntRange(least, most)
        case OptionKind.INTEGER:
            return int
        case OptionKind.NUMBER:
            return float
        case OptionKind.PAIR:
            return (float, float)
        case OptionKind.PATH:
            return CheckpointPath()
        case OptionKind.SIZE:
            return ByteSize()
        case OptionKind.SPAN:
            return Duration()
        case _:  # text; also parts, which the function parses
            return str


def _reach(context: click.Context, parameter: click.Parameter, socket: Path | None) -> Path | None:
    """Return the path of the daemon's socket. With --host, open an ssh tunnel to another machine
    and return the socket of the tunnel, which is closed when the command ends.

    Raises BadRequest, DaemonUnreachable.
    """
    host = context.find_root().params.get(HOST)
    if host is None or context.resilient_parsing:
        return socket
    if socket is not None:
        raise BadRequest(
            "--host and --socket exclude each other; use --host ssh://HOST/PATH/OF/api.sock for a "
            "socket on another machine"
        )
    from zerotools.jobs.client.ssh_tunnel import SshTunnel, parse_host  # needed only for ssh

    tunnel = SshTunnel(parse_host(host))
    context.call_on_close(tunnel.close)
    return tunnel.socket


pager_option = option(
    "--pager",
    group=OUTPUT,
    type=click.Choice((AUTO, NEVER)),
    default=AUTO,
    show_default=True,
    help="Show output that is longer than the screen with $PAGER (default: less).",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

socket_option = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    callback=_reach,
    help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, or the standard path]",
)

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The daemon's state directory; default: the standard directory.",
)


def interval_option(least: float) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option `--interval` of at least `least` seconds, for commands that poll."""
    return option(
        "--interval",
        group=OUTPUT,
        type=click.FloatRange(min=least, max=3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Time between two readings.",
    )
