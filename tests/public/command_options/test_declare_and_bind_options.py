"""Options are declared once: a function takes what its command takes."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Required, TypedDict, Union, Unpack, get_args, get_origin

import click
import numpy as np
import pytest

import zerotools
from zerotools.cli.command_table import CHECKPOINTS, COMMANDS
from zerotools.cli.main import build
from zerotools.cli.options.click_options import options_of
from zerotools.cli.options.import_options import config_options
from zerotools.core.errors import BadRequest
from zerotools.public import (
    compare_checkpoints,
    consolidate_and_convert,
    estimate_memory,
    gather_shards,
    inspect_checkpoint,
    make_and_apply_deltas,
    reshard_checkpoint,
    salvage_weights,
    serve_checkpoint,
    thin_checkpoints,
    verify_checkpoint,
)
from zerotools.public.command_options.declare_and_bind_options import (
    Option,
    OptionKind,
    PathOption,
    PathOrFlag,
    Size,
    Span,
    Switch,
    Words,
    bind_options,
    declared_options,
    describe_options,
    takes_options,
)

KEYWORDS: dict[str, type] = {
    "inspect": inspect_checkpoint.InspectKeywords,
    "diff": compare_checkpoints.DiffKeywords,
    "consolidate": consolidate_and_convert.ConsolidateKeywords,
    "reshard": reshard_checkpoint.ReshardKeywords,
    "convert": consolidate_and_convert.ConvertKeywords,
    "verify": verify_checkpoint.VerifyKeywords,
    "salvage": salvage_weights.SalvageKeywords,
    "thin": thin_checkpoints.ThinKeywords,
    "gather": gather_shards.GatherKeywords,
    "delta": make_and_apply_deltas.DeltaKeywords,
    "apply": make_and_apply_deltas.ApplyKeywords,
    "serve": serve_checkpoint.ServeKeywords,
    "estimate": estimate_memory.EstimateKeywords,
}
ARGUMENTS = {
    "diff": ["a", "b"],
    "consolidate": ["a", "b"],
    "reshard": ["a", "b", "--world-size", "2"],
    "convert": ["a", "b", "--to", "dcp"],
    "salvage": ["a", "b"],
    "gather": ["a", "b"],
    "delta": ["a", "b", "c"],
    "apply": ["a", "b", "c"],
}
"""What a command needs; those that are not here need a path."""
OF_PAPER = {
    "inspect": {"tensors", "verbose", "pager", "html"},  # a function returns all of it
    "diff": {"top", "html"},  # and every difference
    "verify": {"strict", "html"},  # and the verdict, of which a command makes a status
    "apply": {"in_place"},  # `out=None`
    "estimate": {"config", "write", "way"},  # and the configs, which --print prints
}
"""Options on what is printed, which a function has no use for."""
NAMES = {"weights_from": "--from"}
"""Keywords that are not called as their flags: `from` is a word of Python."""
OF_FUNCTIONS = {"progress", "on_error"}


def command_of(name: str) -> click.Command:
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def options_of_command(name: str) -> dict[str, click.Option]:
    """The options of a command by their parameter, without those that only it has."""
    configs = click.command("x")(config_options(lambda **_: 0))
    others = (
        {each.name for each in configs.params} | {"as_json", "debug"} | OF_PAPER.get(name, set())
    )
    found = [each for each in command_of(name).params if isinstance(each, click.Option)]
    return {each.name: each for each in found if each.name not in others and each.name is not None}


def keywords_of(name: str) -> dict[str, inspect.Parameter]:
    """The keywords of a function, as `help()` has them."""
    parameters = inspect.signature(getattr(zerotools, name)).parameters
    return {
        each.name: each
        for each in parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in OF_FUNCTIONS
    }


def test_every_command_on_checkpoints_has_its_function() -> None:
    of_checkpoints = {name for name, entry in COMMANDS.items() if entry.section == CHECKPOINTS}
    assert of_checkpoints - {"maps"} | {"estimate"} == KEYWORDS.keys()


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_function_has_the_keywords_of_its_command(name: str) -> None:
    options = options_of_command(name)
    assert keywords_of(name).keys() == options.keys()
    for keyword, option in options.items():
        flags = [each for each in option.opts if each.startswith("--")]
        assert flags == [NAMES.get(keyword, "--" + keyword.replace("_", "-"))]


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_keyword_has_the_default_of_its_option(name: str) -> None:
    command, keywords = command_of(name), keywords_of(name)
    declared = declared_options(KEYWORDS[name])
    parsed = command.make_context(name, ARGUMENTS.get(name, ["a"])).params
    for keyword, option in options_of_command(name).items():
        default = keywords[keyword].default
        assert option.required == (default is inspect.Parameter.empty)
        if not option.required:
            each = declared[keyword]
            assert each.value_of(default) == each.value_of(parsed[keyword]), keyword


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_default_is_of_the_type_that_is_declared(name: str) -> None:
    for keyword, parameter in keywords_of(name).items():
        if parameter.default is not inspect.Parameter.empty:
            assert is_of(parameter.default, parameter.annotation), keyword


def is_of(value: object, hint: Any) -> bool:
    """Whether a value is one of a type, as far as those of options go."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(is_of(value, each) for each in arguments)
    return isinstance(value, origin or hint or type(None))


@pytest.mark.parametrize("name", KEYWORDS)
def test_the_help_of_a_function_names_every_option(name: str) -> None:
    text = getattr(zerotools, name).__doc__
    assert [each for each in keywords_of(name) if f"    {each}: " not in text] == []
    assert text.count("progress: ") == (
        "progress" in inspect.signature(getattr(zerotools, name)).parameters
    )


class ToyOptions(TypedDict, total=False):
    """One option of each kind."""

    to: Required[Annotated[str, Option(help="Where.", choices=("a", "b"))]]
    force: Annotated[bool, Option(help="Do it, as --size says.")]
    place: Annotated[PathOption | None, Option(help="A path.")]
    report: Annotated[PathOrFlag | None, Option(help="A path, or the usual one.")]
    size: Annotated[Size, Option(default="1KiB", help="Bytes.")]
    age: Annotated[Span | None, Option(help="Seconds.")]
    names: Annotated[Words, Option(help="Names.")]
    stage: Annotated[Literal[1, 2] | None, Option(help="A stage.")]
    trick: Annotated[Switch | None, Option(help="On or off.")]
    count: Annotated[int | None, Option(least=1, most=3, help="How many.")]
    betas: Annotated[tuple[float, float] | None, Option(help="Two numbers.")]


@takes_options(ToyOptions)
def toy(path: str, **options: Unpack[ToyOptions]) -> dict[str, Any]:
    """Return what was given."""
    return bind_options(ToyOptions, options)


@click.command("toy")
@options_of(ToyOptions)
def toy_command(**given: Any) -> dict[str, Any]:
    return bind_options(ToyOptions, given)


def from_line(*words: str) -> dict[str, Any]:
    found = toy_command.main([*words], standalone_mode=False)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), {}),
        (("--force",), {"force": True}),
        (("--place", "x"), {"place": "x"}),
        (("--report",), {"report": True}),
        (("--report", "x"), {"report": "x"}),
        (("--size", "2MB"), {"size": 2_000_000}),
        (("--age", "2m"), {"age": 120}),
        (("--names", "x"), {"names": "x"}),
        (("--names", "x", "--names", "y"), {"names": ["x", "y"]}),
        (("--stage", "2"), {"stage": 2}),
        (("--trick", "off"), {"trick": False}),
        (("--count", "3"), {"count": 3}),
        (("--betas", "0.5", "1"), {"betas": (0.5, 1.0)}),
        ((), {"size": None, "names": None, "force": None, "count": None}),
    ],
)
def test_a_value_is_the_same_from_both_sides(words: tuple[str, ...], given: dict[str, Any]) -> None:
    assert from_line("--to", "a", *words) == toy("p", to="a", **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": "c"}, "to='c': must be one of a, b"),
        ({"size": "big"}, "size='big': is not a size"),
        ({"age": "old"}, "age='old': "),
        ({"stage": 3}, "stage=3: must be one of 1, 2"),
        ({"count": 0}, "count=0: must be at least 1"),
        ({"count": 4}, "count=4: must be at most 3"),
        ({"count": 1.5}, "count=1.5: must be an integer"),
        ({"count": True}, "count=True: must be an integer"),
        ({"stage": True}, "stage=True: must be one of 1, 2"),
        ({"stage": 2.0}, "stage=2.0: must be one of 1, 2"),
        ({"age": -1}, "age=-1: must be a number of seconds"),
        ({"age": 2**70}, "age=.*: must be at most 3650 days"),
        ({"size": True}, "size=True: must be an integer"),
        ({"trick": "yes"}, "trick='yes': must be True or False"),
        ({"betas": (1,)}, "must be two numbers"),
        ({"betas": "12"}, "must be two numbers"),
        ({"betas": (1, "2")}, "must be a number"),
        ({"names": Path("x")}, "must be text, or several texts"),
        ({"names": [1]}, "must be text, or several texts"),
        ({"place": b"x"}, "b'x' is not a path"),
    ],
)
def test_a_wrong_value_is_a_bad_request(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        toy("p", **{"to": "a", **given})


@pytest.mark.parametrize("name", KEYWORDS)
def test_no_option_takes_a_value_of_another_type(name: str) -> None:
    needed = {"reshard": {"world_size": 2}, "convert": {"to": "dcp"}}.get(name, {})
    for keyword, each in declared_options(KEYWORDS[name]).items():
        for wrong in (1.5, b"x", object(), {1: 2}, [1], math.nan, "\udc80\0", lambda: None):
            is_free_text = each.kind in (OptionKind.TEXT, OptionKind.WORDS) and not each.choices
            is_number = each.kind is OptionKind.NUMBER
            if (is_free_text and type(wrong) is str) or (is_number and type(wrong) is float):
                continue
            with pytest.raises(BadRequest):
                bind_options(KEYWORDS[name], {**needed, keyword: wrong})


@pytest.mark.parametrize("value", ["no", "false", "", 0, 1, [], "True"])
def test_only_true_and_false_are_taken_for_a_flag(value: object) -> None:
    with pytest.raises(BadRequest, match="must be True or False"):
        toy("p", to="a", force=value)  # type: ignore[arg-type]  # as a caller without mypy does


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {
        "force": np.bool_(True),
        "size": np.int64(5),
        "age": np.int32(7),
        "stage": np.int8(2),
        "count": np.uint16(3),
        "betas": (np.float32(0.5), np.int8(1)),
    }
    found = toy("p", to="a", **given)
    assert {name: found[name] for name in given} == {
        "force": True,
        "size": 5,
        "age": 7,
        "stage": 2,
        "count": 3,
        "betas": (0.5, 1.0),
    }
    assert type(found["count"]) is int


def test_an_unknown_keyword_is_a_type_error_as_of_any_function() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        toy("p", to="a", sizes=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required keyword-only argument: 'to'"):
        toy("p")  # type: ignore[call-arg]


def test_the_signature_and_the_docstring_are_those_of_the_options() -> None:
    assert describe_options(toy) is describe_options(toy) is toy
    signature = inspect.signature(toy)
    assert list(signature.parameters) == ["path", *ToyOptions.__annotations__]
    assert signature.parameters["size"].default == "1KiB"
    assert signature.parameters["to"].default is inspect.Parameter.empty
    assert toy.__doc__ is not None
    assert toy.__doc__.startswith(
        "Return what was given.\n\nOptions:\n    to: Where. One of 'a', 'b'."
    )
    assert "    force: Do it, as size says." in toy.__doc__
