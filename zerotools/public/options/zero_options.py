"""Options of a DeepSpeed checkpoint: settings of the run that resumes from it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from zerotools.formats.deepspeed.schema.ds_config import read_config
from zerotools.formats.format import WriteOptions
from zerotools.public.options.option import TRAINING, Option, PathOption, Switch


class ZeroOptions(TypedDict, total=False):
    """Settings of the DeepSpeed run that resumes."""

    stage: Annotated[
        Literal[1, 2, 3] | None,
        Option(group=TRAINING, help="ZeRO stage to write. Default: the source's."),
    ]
    sub_group_size: Annotated[
        int | None,
        Option(
            group=TRAINING,
            metavar="N",
            help="Stage 3's sub_group_size to write. Default: the source's.",
        ),
    ]
    round_robin: Annotated[
        Switch | None,
        Option(
            group=TRAINING,
            help="round_robin_gradients of stages 1 and 2. Default: the source's.",
        ),
    ]
    ds_config: Annotated[
        PathOption | None,
        Option(
            group=TRAINING,
            metavar="FILE",
            help="Take these from the DeepSpeed config of the run that will resume.",
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
