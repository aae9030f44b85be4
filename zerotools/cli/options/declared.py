"""The options of a command, made of the declaration that its function has, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.grouped import option
from zerotools.cli.options.sizes import ByteSize
from zerotools.cli.options.spans import Span
from zerotools.public.options.option import DeclaredOption, OptionKind, declared_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options_of(declaration: type) -> Callable[[_Command], _Command]:
    """Return a decorator that adds all options of the TypedDict to a command. The command gets them
    by the same keywords as the function."""

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
    """Return the arguments of `click.option` that depend on the kind."""
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
            return Span()
        case _:  # text, and parts, which the function reads
            return str
