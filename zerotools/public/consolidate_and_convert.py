"""Functions that write a checkpoint in another format: consolidate and convert."""

from __future__ import annotations

from typing import Annotated, Required, TypedDict, Unpack

from zerotools.core.dtypes import PRECISIONS
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.naming_styles import STYLES
from zerotools.formats.format import ReadOptions
from zerotools.io.stores.parse_url import output_of, path_of
from zerotools.ops.conversions import convert as converting
from zerotools.ops.conversions.conversion import Conversion, Unchanged, refuse_overflow
from zerotools.ops.conversions.merged_model import ADAPTER_OPTIONS
from zerotools.ops.conversions.quantised_export import KEEP
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.public.command_options.declare_and_bind_options import (
    OPTIMIZER,
    OUTPUT,
    TRAINING,
    Option,
    PathOption,
    Size,
    StrPath,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.model_output_options import (
    AdapterOptions,
    CheckNamesOption,
    FormatOption,
    MapOptions,
    MastersOption,
    ModelOptions,
    export_options,
    map_request,
    overflow_check,
)
from zerotools.public.command_options.part_and_memory_options import PartOptions, WritingOptions
from zerotools.public.command_options.read_options import ConfigDirOption, ReadingOptions
from zerotools.public.progress import ProgressWanted
from zerotools.public.reshard_checkpoint import ForceOption, ZeroOptions, zero_settings
from zerotools.public.run_conversion import ConversionResult, carry_out


class LikeOption(TypedDict, total=False):
    """The option for a model that the output must match."""

    like: Annotated[
        PathOption | None,
        Option(
            group=OUTPUT,
            metavar="DIR",
            help="Before writing, compare names, shapes and dtypes with those of this model.",
        ),
    ]


class ConsolidateKeywords(
    ReadingOptions,
    MastersOption,
    AdapterOptions,
    ModelOptions,
    CheckNamesOption,
    MapOptions,
    FormatOption,
    ConfigDirOption,
    LikeOption,
    WritingOptions,
    PartOptions,
    total=False,
):
    """The options of `zerotools consolidate`."""


@takes_options(ConsolidateKeywords)
def consolidate(
    path: StrPath,
    out: StrPath,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ConsolidateKeywords],
) -> ConversionResult:
    """Merge the checkpoint at `path` into a Hugging Face model in the directory `out`.

    `path` is a checkpoint, or the directory of a run, which stands for its newest checkpoint. A
    LoRA adapter is merged into its base model, which comes from the run or from `base`. With
    `adapter_only` only adapter_model.safetensors and adapter_config.json are written.

    Raises:
        BadRequest: `path` does not exist, `out` exists, or an option is wrong.
        BadFile: `path` is not a checkpoint, or the weights or their metadata are damaged.
        Unsupported: the format cannot be read.
    """
    from zerotools.ops.conversions.consolidate import prepare_export

    given = bind_options(ConsolidateKeywords, options)
    prepared = prepare_export(
        path_of(path),
        output_of(out),
        export_options(given, map_request(given)),
        tag=given["tag"],
        layout=given["layout"],
        section=given["section"],
        config_dir=given["config_dir"],
    )
    return carry_out(prepared, given, "consolidate", progress, overflow_check(given))


class TargetOptions(TypedDict, total=False):
    """Options for the format to write."""

    to: Required[
        Annotated[
            str,
            Option(
                group=OUTPUT,
                choices=(*converting.written_formats(), converting.JOB),
                help="Format to write; job: a checkpoint that a job of zerotools can resume from.",
            ),
        ]
    ]
    style: Annotated[
        str | None,
        Option(
            group=OUTPUT,
            choices=STYLES,
            help="Style of the names and directories (dcp). Default: torch.",
        ),
    ]
    dtype: Annotated[
        str | None,
        Option(
            group=OUTPUT,
            choices=(KEEP, *PRECISIONS, *QUANTISERS),
            help="Dtype of the floating-point weights (safetensors, orbax). Default: keep.",
        ),
    ]
    max_shard_size: Annotated[
        Size | None,
        Option(
            group=OUTPUT,
            help="Maximum size of a file of tensors (safetensors, megatron, orbax). Default: 5GB; "
            "orbax: 256MiB.",
        ),
    ]


class OptimizerOptions(TypedDict, total=False):
    """Options for the optimizer of the run that will resume from the output. They give values that
    the checkpoint may lack."""

    world_size: Annotated[
        int | None,
        Option(
            group=TRAINING,
            help="Number of ranks that will load the output (deepspeed, dcp, job). Default: the "
            "number that saved the source.",
        ),
    ]
    expert_parallel: Annotated[
        int | None,
        Option(
            group=TRAINING,
            help="Number of expert-parallel ranks of the run that will load the optimizer "
            "(megatron). Default: the number of the source. If it is unknown, more than 1 is "
            "assumed.",
        ),
    ]
    lr: Annotated[
        float | None, Option(group=OPTIMIZER, help="Learning rate, if the checkpoint has none.")
    ]
    betas: Annotated[
        tuple[float, float] | None,
        Option(group=OPTIMIZER, metavar="B1 B2", help="Adam's betas, if the checkpoint has none."),
    ]
    eps: Annotated[
        float | None, Option(group=OPTIMIZER, help="Adam's eps, if the checkpoint has none.")
    ]
    weight_decay: Annotated[
        float | None, Option(group=OPTIMIZER, help="Weight decay, if the checkpoint has none.")
    ]
    momentum: Annotated[
        float | None, Option(group=OPTIMIZER, help="SGD's momentum, if the checkpoint has none.")
    ]
    order: Annotated[
        str | None,
        Option(
            group=OPTIMIZER,
            metavar="model|FILE",
            help="The order of the optimizer's parameters, if the checkpoint has numbers "
            "instead of their names: model (the order in the model of config.json), or a file "
            "of names, one per line, with an empty line between param groups.",
        ),
    ]
    weights_only: Annotated[
        bool, Option(group=OPTIMIZER, help="Convert only the weights, no optimizer.")
    ]


class ConvertKeywords(
    TargetOptions,
    ReadingOptions,
    AdapterOptions,
    CheckNamesOption,
    MapOptions,
    ZeroOptions,
    OptimizerOptions,
    ConfigDirOption,
    ForceOption,
    WritingOptions,
    PartOptions,
    total=False,
):
    """The options of `zerotools convert`."""


_OF_TARGETS = (
    *("world_size", "style", "dtype", "expert_parallel"),
    *("lr", "betas", "eps", "weight_decay", "momentum", "order"),
    "weights_only",
    *ADAPTER_OPTIONS,
)
"""The names of the options that only some target formats accept."""


@takes_options(ConvertKeywords)
def convert(
    path: StrPath,
    out: StrPath,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ConvertKeywords],
) -> ConversionResult:
    """Write the checkpoint at `path`, with its optimizer state, in the format `to` into `out`.

    `path` is a checkpoint, or the directory of a run, which stands for its newest checkpoint.
    `dropped` of the result lists the parts that the format cannot hold.

    Raises:
        BadRequest: `path` does not exist, `out` exists, or an option is wrong.
        BadFile: `path` is not a checkpoint, or it is damaged.
        Unsupported: the format cannot hold the weights.
    """
    given = bind_options(ConvertKeywords, options)
    settings = zero_settings(given)
    asked = {name: given[name] for name in _OF_TARGETS}
    asked["max_shard_bytes"] = given["max_shard_size"]
    asked |= {name: getattr(settings, name) for name in settings.given()}
    asked["no_check_names"] = given["no_check_names"]
    asked = {
        name: value for name, value in asked.items() if value is not None and value is not False
    }
    mapping = map_request(given)
    reading = {name: given[name] for name in ("tag", "layout", "section")}
    prepared: Conversion | Unchanged
    if given["to"] == converting.JOB:
        from zerotools.ops.conversions.convert_foreign_to_job import prepare_job

        if mapping is not None:
            raise BadRequest(
                "--map-to and --to job exclude each other: a job needs the layout of its model; "
                "run convert with --map-to first, then convert the result with --to job"
            )
        prepared = prepare_job(
            path_of(path), output_of(out), asked, config_dir=given["config_dir"], **reading
        )
    else:
        prepared = converting.prepare_convert(
            path_of(path),
            output_of(out),
            given["to"],
            {**asked, converting.FORCE: given["force"]},
            reading=ReadOptions(**reading),
            config_dir=given["config_dir"],
            mapping=mapping,
        )
    return carry_out(prepared, given, "convert", progress, _refuse_overflow)


def _refuse_overflow(report: WriteReport) -> None:
    refuse_overflow(report, "use --dtype bf16 or fp32")
