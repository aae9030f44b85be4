"""The function `reshard`: write a checkpoint for another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required, TypedDict, Unpack

from zerotools.formats.deepspeed.schema.ds_config import read_config
from zerotools.formats.format import WriteOptions
from zerotools.io.stores.parse_url import output_of, path_of
from zerotools.ops.conversions.reshard import prepare_reshard
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    TRAINING,
    Option,
    PathOption,
    StrPath,
    Switch,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.part_and_memory_options import PartOptions, WritingOptions
from zerotools.public.command_options.read_options import TagOption
from zerotools.public.progress import ProgressWanted
from zerotools.public.run_conversion import ConversionResult, carry_out


class ZeroOptions(TypedDict, total=False):
    """Options for the ZeRO settings of the DeepSpeed run that will resume from the output."""

    stage: Annotated[
        Literal[1, 2, 3] | None,
        Option(group=TRAINING, help="ZeRO stage to write. Default: as in the source."),
    ]
    sub_group_size: Annotated[
        int | None,
        Option(
            group=TRAINING,
            metavar="N",
            help="The sub_group_size of stage 3 to write. Default: as in the source.",
        ),
    ]
    round_robin: Annotated[
        Switch | None,
        Option(
            group=TRAINING,
            help="Order the parameters of stages 1 and 2 as round_robin_gradients does. Default: "
            "as in the source.",
        ),
    ]
    ds_config: Annotated[
        PathOption | None,
        Option(
            group=TRAINING,
            metavar="FILE",
            help="Take the settings of ZeRO and of the optimizer from the DeepSpeed config of "
            "the run that will resume.",
        ),
    ]


class ForceOption(TagOption, total=False):
    """The option to rewrite a checkpoint even if it already has the requested layout."""

    force: Annotated[bool, Option(group=OUTPUT, help="Rewrite even if nothing changes.")]


class RanksOption(TypedDict):
    """The option for the number of ranks."""

    world_size: Required[
        Annotated[int, Option(group=TRAINING, help="Number of ranks that will load the output.")]
    ]


class ReshardKeywords(
    RanksOption, ZeroOptions, ForceOption, WritingOptions, PartOptions, total=False
):
    """The options of `zerotools reshard`."""


@takes_options(ReshardKeywords)
def reshard(
    path: StrPath,
    out: StrPath,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ReshardKeywords],
) -> ConversionResult:
    """Write the checkpoint at `path`, with its optimizer state, for `world_size` ranks into `out`.

    `path` is a checkpoint, or the directory of a run, which stands for its newest checkpoint.

    Raises:
        BadRequest: `path` does not exist, `out` exists, or an option is wrong.
        BadFile: `path` is not a checkpoint, or it is damaged.
        Unsupported: the format has no ranks, or zerotools cannot write it.
    """
    given = bind_options(ReshardKeywords, options)
    prepared = prepare_reshard(
        path_of(path),
        output_of(out),
        world_size=given["world_size"],
        options=zero_settings(given),
        force=given["force"],
        tag=given["tag"],
    )
    return carry_out(prepared, given, "reshard", progress)


def zero_settings(given: Mapping[str, Any]) -> WriteOptions:
    """Return the settings for the writer of DeepSpeed checkpoints.

    Raises:
        BadRequest: `ds_config` cannot be read.
    """
    config = given["ds_config"]
    return WriteOptions(
        stage=given["stage"],
        sub_group_size=given["sub_group_size"],
        round_robin=given["round_robin"],
        ds_config=None if config is None else read_config(config),
    )
