"""Options that give tensors the names and layout of another program, such as Megatron."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from zerotools.core.errors import BadRequest
from zerotools.ops.weights.layout_mapping import MapRequest
from zerotools.public.command_options.declare_and_bind_options import (
    NAMES,
    Option,
    PathOption,
    Words,
)


class MapArgOption(TypedDict, total=False):
    """The option for sizes that a layout map needs. A layout map is a TOML file with the names and
    layout of tensors in another program."""

    map_arg: Annotated[
        Words,
        Option(
            group=NAMES,
            metavar="NAME=NUMBER",
            help="A size that the layout map uses instead of the one in config.json, such as "
            "vocab_multiple=128.",
        ),
    ]


class LayoutOptions(TypedDict, total=False):
    """Options that give tensors the names and layout of another program, such as Megatron."""

    map_to: Annotated[
        str | None,
        Option(
            group=NAMES,
            metavar="LAYOUT",
            help="Give the tensors the names and the layout of another program (hf, megatron, "
            "...; see zerotools maps list).",
        ),
    ]
    map_from: Annotated[
        str | None,
        Option(
            group=NAMES,
            metavar="LAYOUT",
            help="The layout of the source, if the names of its tensors do not show it.",
        ),
    ]
    map: Annotated[
        PathOption | None,
        Option(
            group=NAMES,
            metavar="FILE",
            help="A TOML file with the names and the layout of the weights in another program "
            "(a layout map), for --map-to.",
        ),
    ]


class MapOptions(LayoutOptions, MapArgOption, total=False):
    """`LayoutOptions`, and the option for sizes that the layout needs."""


def map_request(given: Mapping[str, Any]) -> MapRequest | None:
    """Return the requested layout of another program; None if the option `map_to` was not given.

    Raises:
        BadRequest: other layout options were given without `map_to`, or `map_arg` is not
            NAME=NUMBER, NAME=true or NAME=false.
    """
    if given["map_to"] is not None:
        return MapRequest(
            to=given["map_to"],
            source=given["map_from"],
            file=given["map"],
            arguments=map_arguments(given["map_arg"]),
        )
    for name in ("map_from", "map_arg", "map"):
        if given[name]:
            flag = "--" + name.replace("_", "-")
            raise BadRequest(f"{flag} needs --map-to; add --map-to, or leave {flag} out")
    return None


def map_arguments(given: Sequence[str]) -> dict[str, int | bool]:
    """Return the sizes that the option `map_arg` gives, keyed by name.

    Raises:
        BadRequest: a text is not NAME=NUMBER, NAME=true or NAME=false.
    """
    found: dict[str, int | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if equals and value in ("true", "false"):
            found[name] = value == "true"
        elif equals and value.isdecimal() and len(value) < 16:
            found[name] = int(value)
        else:
            raise BadRequest(f"--map-arg {text!r} is not NAME=NUMBER, NAME=true or NAME=false")
    return found
