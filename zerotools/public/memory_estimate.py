"""Predict the memory of a training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

from zerotools.jobs.estimating.estimating import Estimate, estimate_model, model_table_of
from zerotools.ops.estimate.choosing import OFFLOADS, STAGES
from zerotools.ops.estimate.model_shape import read_shape
from zerotools.ops.estimate.terms import Machine
from zerotools.public.options.machine_options import MachineOptions, given_machine
from zerotools.public.options.option import (
    OUTPUT,
    TRAINING,
    Option,
    StrPath,
    Words,
    bound,
    takes_options,
)


class TrainingOptions(TypedDict, total=False):
    """How a model is trained."""

    batch: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**20,
            metavar="N",
            help="Sequences that a GPU computes at a time.  [default: 1]",
        ),
    ]
    sequence_length: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**24,
            metavar="TOKENS",
            help="Length of a sequence.  [default: what the model has positions for, at most 4096]",
        ),
    ]
    precision: Annotated[
        Literal["bf16", "fp16", "fp32"] | None, Option(group=TRAINING, help="[default: bf16]")
    ]
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit"] | None,
        Option(group=TRAINING, help="[default: adamw]"),
    ]
    engine: Annotated[
        Literal["torch", "deepspeed"] | None,
        Option(group=TRAINING, help="Who trains.  [default: torch]"),
    ]
    accumulation: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**20,
            metavar="N",
            help="Micro batches whose gradients are summed for a step.  [default: 1]",
        ),
    ]
    activation_checkpointing: Annotated[
        bool, Option(group=TRAINING, help="Compute blocks a second time.")
    ]


class ShownOptions(TypedDict, total=False):
    """Which rows the table has."""

    stage: Annotated[
        Literal[0, 1, 2, 3, "all"],
        Option(group=OUTPUT, default="all", help="Show one ZeRO stage."),
    ]
    offload: Annotated[
        Words,
        Option(
            group=OUTPUT,
            choices=OFFLOADS,
            help="Show what is offloaded so; may be repeated.  [default: all ways]",
        ),
    ]


class EstimateKeywords(TrainingOptions, ShownOptions, MachineOptions, total=False):
    """The options of `zerotools estimate`, but for those that name a config."""


@takes_options(EstimateKeywords)
def estimate(model: StrPath, **options: Unpack[EstimateKeywords]) -> Estimate:
    """Predict the memory of training `model`, and say which ZeRO stage is the fastest that fits.

    `model` is a Hugging Face directory or config.json, a checkpoint of any format, or a number of
    parameters such as "7B". Nothing is loaded: shapes are read from configs and headers. `stage`,
    `offload` and `reason` of the result are the choice, `rows` the table, and `fits` says whether
    anything fits.

    Raises:
        BadRequest: there is no such model, its config lacks a size, or an option is wrong.
        BadFile: a checkpoint is damaged.
        Unsupported: the architecture is not known, and transformers is not there to be asked.
    """
    given = bound(EstimateKeywords, options)
    return estimated_model(os.fspath(model), given_machine(given).machine(), given)


def estimated_model(model: str, machine: Machine, given: Mapping[str, Any]) -> Estimate:
    """Estimate a model on a machine. `given` are bound `EstimateKeywords`."""
    return estimate_model(
        read_shape(model),
        machine,
        batch=given["batch"],
        sequence=given["sequence_length"],
        precision=given["precision"] or "bf16",
        optimizer=given["optimizer"] or "adamw",
        engine=given["engine"] or "torch",
        accumulation=given["accumulation"] or 1,
        checkpointing=given["activation_checkpointing"],
        stages=shown_stages(given),
        offloads=given["offload"] or OFFLOADS,
        model_table=model_table_of(str(Path(model))),
    )


def shown_stages(given: Mapping[str, Any]) -> tuple[int, ...]:
    """The stages that the option `stage` asks for."""
    return STAGES if given["stage"] == "all" else (given["stage"],)
