"""Declarations of options, and functions that take them.

    class ThinKeywords(TypedDict, total=False):
        force: Annotated[bool, Option(help="Also thin a checkpoint that has problems.")]

    @takes_options(ThinKeywords)
    def thin(path: StrPath, **options: Unpack[ThinKeywords]) -> ThinResult:
        given = bind_options(ThinKeywords, options)

`zerotools.cli.options.click_options` makes the option `--force` from the same declaration. This
module imports neither click nor any module that reads checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Required, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import path_of

WHAT = "What"
NAMES = "Names and layout"
TRAINING = "Training"
OPTIMIZER = "Optimizer"
WHEN = "When and where"
OUTPUT = "Output"
RESOURCES = "Resources"
GENERAL = "General"
"""The titles of the groups on a help page. `zerotools.cli.options.click_options` has their
order.
"""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OptionKind(Enum):
    """The kind of values that an option accepts."""

    FLAG = auto()
    SWITCH = auto()
    """True or False, or None if it was not given. On the command line `on` or `off`."""
    TEXT = auto()
    INTEGER = auto()
    NUMBER = auto()
    PAIR = auto()
    """Two numbers."""
    CHOICE = auto()
    WORDS = auto()
    """One text or several. On the command line the option may be repeated."""
    PATH = auto()
    """A path of this machine, or the address of an object store."""
    PATH_OR_FLAG = auto()
    """A path, or True for the default path."""
    SIZE = auto()
    """A number of bytes, or text such as "5GB"."""
    SPAN = auto()
    """A number of seconds, or text such as "30d"."""
    PART = auto()
    """Part I of N, as "3/8" or (3, 8)."""
    GPUS = auto()
    """A number of GPUs, or text such as "4x24" or "2xRTX 4090"."""


StrPath = str | os.PathLike[str]
PathOption = Annotated[StrPath, OptionKind.PATH]
PathOrFlag = Annotated[StrPath | bool, OptionKind.PATH_OR_FLAG]
Words = Annotated[str | Sequence[str], OptionKind.WORDS]
Size = Annotated[int | str, OptionKind.SIZE]
Span = Annotated[int | str, OptionKind.SPAN]
Part = Annotated[str | tuple[int, int], OptionKind.PART]
Gpus = Annotated[int | str, OptionKind.GPUS]
Switch = Annotated[bool, OptionKind.SWITCH]

_PROGRESS = "    progress: A callable that gets a ProgressUpdate now and then, or True for a bar."
_PLAIN = {
    bool: OptionKind.FLAG,
    str: OptionKind.TEXT,
    int: OptionKind.INTEGER,
    float: OptionKind.NUMBER,
    tuple: OptionKind.PAIR,
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of one option. Its keyword is the key of the TypedDict.

    Attributes:
        flag: the flag on the command line; None: it is made from the keyword, such as
            `--max-memory` from `max_memory`.
        short: a second flag of one letter.
        choices: the allowed values, if no Literal lists them.
        least, most: the smallest and the largest allowed integer.
    """

    help: str
    group: str = GENERAL
    default: Any = None
    flag: str | None = None
    short: str | None = None
    metavar: str | None = None
    choices: Sequence[str] = ()
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class DeclaredOption:
    """An option, with the keyword, the kind and the allowed values from its TypedDict."""

    keyword: str
    option: Option
    kind: OptionKind
    choices: tuple[Any, ...]
    is_required: bool

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return self.option.flag or "--" + self.keyword.replace("_", "-")

    @property
    def default(self) -> Any:
        """The default value."""
        if self.option.default is not None:
            return self.option.default
        return {OptionKind.FLAG: False, OptionKind.WORDS: ()}.get(self.kind)

    @property
    def meaning(self) -> str:
        """The help text for the Python function. It names keywords instead of flags."""
        words = self.option.help.replace("; may be repeated", "").split(" ")
        return " ".join(
            word[2:].replace("-", "_") if word.startswith("--") else word for word in words
        )

    def value_of(self, given: Any) -> Any:
        """Convert a value to the type that zerotools works with, such as a path, a number of bytes
        or a tuple of texts. A value that already has this type is returned unchanged.

        Raises:
            BadRequest: the value is not allowed. The message names the Python keyword and not the
                flag: click itself checks the values of flags.
        """
        if given is None:
            return None
        given = _plain(given)
        if self.kind is OptionKind.CHOICE:  # the command line has texts only
            given = self._chosen(given)
        try:
            value = _CONVERTED[self.kind](given)
        except ValueError as error:
            raise BadRequest(f"{self.keyword}={given!r:.200}: {error}") from None
        self._check(value)
        return value

    def _chosen(self, given: Any) -> Any:
        for each in self.choices:
            if str(each) == str(given):
                return each
        allowed = ", ".join(map(str, self.choices))
        raise BadRequest(f"{self.keyword}={given!r:.200}: must be one of {allowed}")

    def _check(self, value: Any) -> None:
        if self.kind is OptionKind.WORDS and self.choices:
            for each in value:
                self._chosen(each)
        if self.kind is not OptionKind.INTEGER:
            return
        least, most = self.option.least, self.option.most
        if least is not None and value < least:
            raise BadRequest(f"{self.keyword}={value}: must be at least {least}")
        if most is not None and value > most:
            raise BadRequest(f"{self.keyword}={value}: must be at most {most}")


def _plain(given: Any) -> Any:
    """Convert a number of numpy or torch to a Python number. Other values are returned
    unchanged."""
    is_number = getattr(given, "shape", None) == () and hasattr(given, "item")
    return given.item() if is_number else given


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError("must be True or False")
    return given


def _switch(given: Any) -> bool:
    return _flag({"on": True, "off": False}.get(given, given) if isinstance(given, str) else given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError("must be text")
    return given


def _integer(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise ValueError("must be an integer")
    return given


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError("must be a number")
    return given


def _pair(given: Any) -> tuple[float, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) != 2:
        raise ValueError("must be two numbers")
    return tuple(_number(_plain(each)) for each in given)


def _words(given: Any) -> tuple[str, ...]:
    words = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(each, str) for each in words):
        raise ValueError("must be text, or several texts")
    return words


def _path_or_flag(given: Any) -> Any:
    """Convert the value of an option that takes a path or a flag: False to None, True to "", and
    other values to a path.
    """
    if isinstance(given, bool):
        return "" if given else None
    return given if given == "" else path_of(given)


def _size(given: Any) -> int:
    return bytes_of(given if isinstance(given, str) else _integer(given))


def _seconds(given: Any) -> int:
    from zerotools.jobs.binding.durations import (
        seconds_of,
    )  # imports jobs, needed only for a duration

    if isinstance(given, str):
        return seconds_of(int(given) if given.isascii() and given.isdecimal() else given)
    return seconds_of(_integer(given))


def _part(given: Any) -> Any:
    from zerotools.ops.execution.output_part import parse_part

    return parse_part(given)


def _gpus(given: Any) -> Any:
    from zerotools.ops.estimate.gpu_cards import Cards, cards_of

    if isinstance(given, Cards):
        return given
    return cards_of(given if isinstance(given, str) else _integer(given))


_CONVERTED: dict[OptionKind, Callable[[Any], Any]] = {
    OptionKind.FLAG: _flag,
    OptionKind.SWITCH: _switch,
    OptionKind.TEXT: _text,
    OptionKind.INTEGER: _integer,
    OptionKind.NUMBER: _number,
    OptionKind.PAIR: _pair,
    OptionKind.CHOICE: lambda chosen: chosen,
    OptionKind.WORDS: _words,
    OptionKind.PATH: path_of,
    OptionKind.PATH_OR_FLAG: _path_or_flag,
    OptionKind.SIZE: _size,
    OptionKind.GPUS: _gpus,
    OptionKind.SPAN: _seconds,
    OptionKind.PART: _part,
}


def as_list(given: StrPath | Iterable[StrPath]) -> list[StrPath]:
    """Return one path or several paths as a list."""
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        return [given]
    return [*given]


@cache
def declared_options(declaration: type) -> dict[str, DeclaredOption]:
    """Return the options that a TypedDict declares, keyed by keyword."""
    hints = hints_of(declaration, include_extras=True)
    return {name: _declared(name, hint) for name, hint in hints.items()}


def _declared(name: str, hint: Any) -> DeclaredOption:
    is_required = get_origin(hint) is Required
    annotated = get_args(hint)[0] if is_required else hint
    plain, *metadata = get_args(annotated)
    option = next(each for each in metadata if isinstance(each, Option))
    kinds = [each for each in metadata if isinstance(each, OptionKind)]
    choices: tuple[Any, ...] = tuple(option.choices)
    for member in get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,):
        origin = get_origin(member)
        if origin is Annotated:
            kinds += [each for each in get_args(member) if isinstance(each, OptionKind)]
        elif origin is Literal:
            choices += get_args(member)
        elif member is not NoneType and (usual := _PLAIN.get(origin or member)) is not None:
            kinds.append(usual)
    if choices and OptionKind.WORDS not in kinds:
        kinds = [OptionKind.CHOICE]
    return DeclaredOption(name, option, kinds[0], choices, is_required)


def bind_options(declaration: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every declared option: the converted value if one was given, else the
    default. A given None has the same effect as no value.

    Raises:
        TypeError: an option is not known, or a required option was not given.
        BadRequest: a value is not allowed.
    """
    declared = declared_options(declaration)
    for name in given:
        if name not in declared:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
    for name, each in declared.items():
        if each.is_required and given.get(name) is None:
            raise TypeError(f"missing a required keyword-only argument: {name!r}")
    return {
        name: each.value_of(each.default if given.get(name) is None else given[name])
        for name, each in declared.items()
    }


def takes_options(declaration: type) -> Callable[[_Function], _Function]:
    """Return a decorator for functions with `**options`, which records the TypedDict of these
    options.

    `describe_options` later adds these options to the function's signature.
    """

    def decorate(function: _Function) -> _Function:
        _DECLARATIONS[function] = declaration
        return function

    return decorate


_DECLARATIONS: dict[Callable[..., Any], type] = {}


def describe_options(function: _Function) -> _Function:
    """Add every option, with its default, to the signature and the docstring of a function.

    This is delayed until a user first accesses the function, because commands do not need it.
    """
    declaration = _DECLARATIONS.pop(function, None)
    if declaration is None:
        return function
    from inspect import Parameter, getdoc, signature

    declared, types = declared_options(declaration), hints_of(declaration)
    own = signature(function, eval_str=True)
    keywords = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.is_required else each.default,
            annotation=types[name],
        )
        for name, each in declared.items()
    ]
    others = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    function.__signature__ = own.replace(  # type: ignore[attr-defined]  # as inspect reads it
        parameters=[*others, *keywords]
    )
    lines = [_described(each) for each in declared.values()]
    if "progress" in own.parameters:
        lines.append(_PROGRESS)
    function.__doc__ = "\n".join([getdoc(function) or "", "", "Options:", *lines])
    return function


def _described(each: DeclaredOption) -> str:
    allowed = f" One of {', '.join(map(repr, each.choices))}." if each.choices else ""
    return f"    {each.keyword}: {each.meaning}{allowed}"
