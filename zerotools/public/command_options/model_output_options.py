"""Options of conversions: the weights, their names and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from zerotools.core.dtypes import PRECISIONS
from zerotools.core.errors import BadRequest
from zerotools.formats import FORMATS
from zerotools.formats.format import format_option
from zerotools.ops.conversions.conversion import refuse_overflow
from zerotools.ops.conversions.quantised_export import AUTO
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.public.command_options.declare_and_bind_options import (
    NAMES,
    OUTPUT,
    WHAT,
    Option,
    PathOption,
    Size,
    Words,
)

if TYPE_CHECKING:  # imported where they are used: a conversion may need neither
    from zerotools.ops.conversions.consolidate import Options
    from zerotools.ops.weights.convert_layout import MapRequest


class RenamingOptions(TypedDict, total=False):
    """Options that change the names of weights."""

    strip_prefix: Annotated[
        Words,
        Option(
            group=NAMES,
            metavar="PREFIX",
            help="Remove this prefix from the names that begin with it.",
        ),
    ]
    rename: Annotated[
        Words,
        Option(
            group=NAMES,
            metavar="REGEX=REPL",
            help="Replace REGEX by REPL in every name, after --strip-prefix.",
        ),
    ]


class SelectionOptions(RenamingOptions, total=False):
    """Options that select weights and change their names."""

    include: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="GLOB",
            help="Export only weights with these names (after --strip-prefix and --rename).",
        ),
    ]
    exclude: Annotated[
        Words,
        Option(
            group=WHAT,
            metavar="GLOB",
            help="Leave out weights with these names (after --strip-prefix and --rename).",
        ),
    ]
    keep_aliases: Annotated[
        bool, Option(group=NAMES, help="Write tied weights under each of their names.")
    ]


class ModelOptions(SelectionOptions, total=False):
    """Options for the files of a model."""

    dtype: Annotated[
        str,
        Option(
            group=OUTPUT,
            default=AUTO,
            choices=(AUTO, *PRECISIONS, *QUANTISERS),
            help="Dtype of the floating-point weights; auto is the 16-bit dtype of the run, and "
            "leaves quantised weights as they are.",
        ),
    ]
    allow_overflow: Annotated[
        bool,
        Option(
            group=OUTPUT, help="Allow values that are too large for fp16: they become infinite."
        ),
    ]
    max_shard_size: Annotated[
        Size, Option(group=OUTPUT, default="5GB", help="Maximum size of a weights file.")
    ]


class MergeOptions(TypedDict, total=False):
    """Options for merging the adapter of a LoRA run into its base model."""

    adapter_config: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="FILE|DIR",
            help="The adapter_config.json of the adapter, if neither the directory of the run nor "
            "a directory above it has one.",
        ),
    ]
    adapter_name: Annotated[
        str | None,
        Option(
            group=WHAT,
            metavar="NAME",
            help="Name of the adapter to merge or export, if the run has several.",
        ),
    ]
    base: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="DIR",
            help="The base model, if the run saved only its adapter or kept its base in 4 bits: a "
            "directory, or a URL of an object store. A job's checkpoint records its base model.",
        ),
    ]


class AdapterOptions(MergeOptions, total=False):
    """Options for the adapter of a LoRA run, which is merged or exported without the model."""

    adapter_only: Annotated[
        bool,
        Option(
            group=WHAT,
            help="Export only the PEFT adapter of the run, as PEFT's save_pretrained writes it.",
        ),
    ]


class CheckNamesOption(TypedDict, total=False):
    """The option to skip the check of names against config.json."""

    no_check_names: Annotated[
        bool,
        Option(
            group=NAMES,
            help="Do not compare names and shapes with the model of config.json, and do not change "
            "names to fit it.",
        ),
    ]


class MastersOption(TypedDict, total=False):
    """The option that chooses between fp32 masters and 16-bit weights."""

    weights_from: Annotated[
        Literal["masters", "weights"],
        Option(
            group=WHAT,
            flag="--from",
            default="masters",
            help="Export the fp32 masters, or the 16-bit weights. Without masters, the 16-bit "
            "weights are exported.",
        ),
    ]


class FormatOption(TypedDict, total=False):
    """The option that chooses the kind of files to write."""

    format: Annotated[
        str,
        Option(
            group=OUTPUT,
            default="safetensors",
            choices=tuple(format_option(form) for form in FORMATS.values() if form.is_exported),
            help="Format of the weights files; torch writes pytorch_model.bin.",
        ),
    ]


def export_options(given: Mapping[str, Any], mapping: MapRequest | None = None) -> Options:
    """Return the options of an export as `Options` of `zerotools.ops`."""
    from zerotools.ops.conversions.consolidate import Options

    names = [each.name for each in fields(Options) if each.name in given]
    return Options(
        **{name: given[name] for name in names},
        max_shard_bytes=given["max_shard_size"],
        check_names=not given["no_check_names"],
        mapping=mapping,
    )


def overflow_check(given: Mapping[str, Any]) -> Callable[[WriteReport], None]:
    """Return a function that raises an error if a cast made weights infinite. With the option
    `allow_overflow`, the function does nothing."""
    return (lambda _: None) if given["allow_overflow"] else refuse_overflow


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
        from zerotools.ops.weights.convert_layout import MapRequest

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
