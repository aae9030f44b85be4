"""Options for the ZeRO settings of the DeepSpeed run that will resume from the output."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from zerotools.formats.deepspeed.schema.ds_config import read_config
from zerotools.formats.format import WriteOptions
from zerotools.public.command_options.declare_and_bind_options import (
    TRAINING,
    Option,
    PathOption,
    Switch,
)


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
            help="Write stages 1 and 2 for round_robin_gradients, or not. Default: as in the "
            "source.",
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
