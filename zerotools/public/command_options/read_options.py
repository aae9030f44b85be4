"""Options that choose a checkpoint and one of its models, and options for reading its files: the
layout of the files, threads and memory."""

from typing import Annotated, TypedDict

from zerotools.public.command_options.declare_and_bind_options import (
    NAMES,
    OUTPUT,
    RESOURCES,
    WHAT,
    Option,
    PathOption,
    Size,
)


class TagOption(TypedDict, total=False):
    """The option that chooses one of several checkpoints in a directory."""

    tag: Annotated[
        str | None,
        Option(group=WHAT, metavar="TAG", help="The tag to read in a save directory of DeepSpeed."),
    ]


class SectionOption(TypedDict, total=False):
    """The option that chooses one of several models in a checkpoint."""

    section: Annotated[
        str | None,
        Option(
            group=WHAT,
            metavar="NAME",
            help="The model to read in a torch DCP that holds several (model, ema, generator).",
        ),
    ]


class ReadingOptions(TagOption, SectionOption, total=False):
    """Options that choose a checkpoint and one of its models, and the layout of its files."""

    layout: Annotated[
        PathOption | None,
        Option(
            group=NAMES,
            metavar="FILE",
            help="A TOML file with rules on how the weights are split among tensor-parallel ranks.",
        ),
    ]


class ConfigDirOption(TypedDict, total=False):
    """The option for a directory with config, tokenizer and other files of a model."""

    config_dir: Annotated[
        PathOption | None,
        Option(
            group=OUTPUT,
            metavar="DIR",
            help="Take config.json and the tokenizer from this model directory.",
        ),
    ]


MEMORY_HELP = "Memory for the buffers of all workers together."


class WorkersOption(TypedDict, total=False):
    """The option for the number of threads."""

    workers: Annotated[
        int | None,
        Option(group=RESOURCES, help="Threads. Default: one per core, at most 8."),
    ]


class CheckingOptions(WorkersOption, total=False):
    """Options for threads and memory, of commands that read tensor data but do not write any."""

    max_memory: Annotated[Size, Option(group=RESOURCES, default="256MiB", help=MEMORY_HELP)]
