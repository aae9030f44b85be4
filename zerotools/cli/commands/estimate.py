"""`zerotools estimate`: will it fit, with which stage, and what takes the memory."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.estimate_page import page
from zerotools.cli.options.config_options import Configs, config_options, read_job_file
from zerotools.cli.options.machine_options import MachineOptions, machine_options
from zerotools.cli.options.shared import json_option
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.estimating.estimating import (
    Estimate,
    estimate_job,
    estimate_model,
    model_table_of,
)
from zerotools.jobs.estimating.job_workload import is_job_file, with_ranks, workload_of
from zerotools.jobs.estimating.launched import WITH_CONFIG, job_with_config
from zerotools.jobs.estimating.written import job_text
from zerotools.jobs.jobfile.parse import given_of, job_from_tree
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.estimate.choosing import OFFLOADS, STAGES
from zerotools.ops.estimate.model_shape import read_shape

EXIT_TOO_LARGE = 1
_CONFIGS = ("job", "deepspeed", "accelerate")


@click.command("estimate")
@click.argument("model", metavar="MODEL|JOBFILE")
@machine_options
@click.option(
    "--batch",
    type=click.IntRange(1, 2**20),
    metavar="N",
    help="Sequences that a GPU computes at a time.  [default: 1]",
)
@click.option(
    "--seq",
    type=click.IntRange(1, 2**24),
    metavar="TOKENS",
    help="Length of a sequence.  [default: what the model has positions for, at most 4096]",
)
@click.option("--precision", type=click.Choice(("bf16", "fp16", "fp32")), help="[default: bf16]")
@click.option(
    "--optimizer",
    type=click.Choice(("adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit")),
    help="[default: adamw]",
)
@click.option(
    "--engine", type=click.Choice(("torch", "deepspeed")), help="Who trains.  [default: torch]"
)
@click.option(
    "--accumulation",
    type=click.IntRange(1, 2**20),
    metavar="N",
    help="Micro batches whose gradients are summed for a step.  [default: 1]",
)
@click.option("--activation-checkpointing", is_flag=True, help="Compute blocks a second time.")
@click.option(
    "--stage",
    type=click.Choice((*map(str, STAGES), "all")),
    default="all",
    help="Show one ZeRO stage.  [default: all]",
)
@click.option(
    "--offload",
    type=click.Choice(OFFLOADS),
    multiple=True,
    help="Show what is offloaded so; may be repeated.  [default: all ways]",
)
@click.option(
    "--print",
    "config",
    type=click.Choice(_CONFIGS),
    help="Print the config that asks for what was chosen, and nothing else.",
)
@config_options
@json_option
def command(
    model: str,
    machine: MachineOptions,
    stage: str,
    offload: tuple[str, ...],
    config: str | None,
    configs: Configs,
    as_json: bool,
    **given: Any,
) -> int:
    """Predict the memory of a training, and say which ZeRO stage is the fastest that fits.

    MODEL is a Hugging Face model directory or config.json, a checkpoint of any format, or a number
    of parameters such as 7B; with --deepspeed or --accelerate it is trained as that config says.
    JOBFILE has all of it. Nothing is loaded: shapes are read from configs and headers. The exit
    status is 1 where nothing fits, or where the job as it is written does not.
    """
    stages = STAGES if stage == "all" else (int(stage),)
    found = _estimated(model, machine, configs, stages, offload or OFFLOADS, given)
    if config is not None and as_json:
        raise BadRequest("--print and --json exclude each other; the JSON has all `configs`")
    if config is not None:
        return _print_config(found, config)
    if as_json:
        render.print_json(found.to_json())
    else:
        render.print_lines(page(found))
    return 0 if found.fits else EXIT_TOO_LARGE


def _estimated(
    model: str,
    machine: MachineOptions,
    configs: Configs,
    stages: tuple[int, ...],
    offloads: tuple[str, ...],
    given: dict[str, Any],
) -> Estimate:
    if configs.lenient and not configs.any:
        raise BadRequest("--lenient is for a config; give --deepspeed or --accelerate")
    path = Path(model)
    named = is_job_file(path)
    if not named and not configs.any:
        return estimate_model(
            read_shape(model),
            machine.machine(),
            batch=given["batch"],
            sequence=given["seq"],
            precision=given["precision"] or "bf16",
            optimizer=given["optimizer"] or "adamw",
            engine=given["engine"] or "torch",
            accumulation=given["accumulation"] or 1,
            checkpointing=given["activation_checkpointing"],
            stages=stages,
            offloads=offloads,
            model_table=model_table_of(model),
        )
    fixed = [
        f"--{name.replace('_', '-')}"
        for name, value in given.items()
        if value and (named or name not in WITH_CONFIG)
    ]
    if fixed:
        raise BadRequest(
            f"{', '.join(fixed)}: {model if named else 'the config'} says that; change it there"
        )
    job = read_job_file(model) if named else job_with_config(model, machine.gpus, given)
    if configs.any or isinstance(job.tree.get("deepspeed"), dict):
        imported = configs.imported(job)
        if imported.problem is not None:
            raise _without_batch(imported.problem, named=named)
        spec = imported.spec
        assert spec is not None, "a job file was given"
    else:
        spec = job_from_tree(job.tree, source=job.source, base_dir=job.base_dir)
    if machine.gpus is not None:
        spec = with_ranks(spec, machine.gpus)
    own = replace(machine, gpus=spec.all_ranks)
    keys, work = given_of(spec), workload_of(spec)  # with paths that hold in any directory
    return estimate_job(
        work,
        replace(own.machine(on_gpu=spec.device == "cuda"), node_ranks=_node_ranks(spec)),
        stages,
        offloads,
        {name: keys[name] for name in ("model", "lora") if name in keys},
        spec.train.batch_size,
    )


def _node_ranks(spec: JobSpec) -> int | None:
    return spec.world_size if spec.fewest_nodes > 1 else None


def _without_batch(problem: ZerotoolsError, *, named: bool) -> ZerotoolsError:
    """The problem in the words of this command, where the batch is what is missing."""
    if named or "train.batch_size: is missing" not in str(problem):
        return problem
    return BadRequest(
        "the config does not say how many sequences a GPU computes at a time; give --batch N"
    )


def _print_config(found: Estimate, config: str) -> int:
    row = found.choice.row
    if row is None:
        raise BadRequest(f"there is no config to print: {found.choice.reason}")
    if found.machine.node_ranks is not None:
        raise BadRequest(
            "--print makes the config of one machine, and this job has [rendezvous]; change [zero] "
            "and [offload] of its file by hand"
        )
    micro, shared = found.work.micro, found.work.layout.tensor_ranks
    shared *= 1 if micro is None else micro.sequence_ranks
    if config != "job" and shared > 1:
        raise BadRequest(
            f"--print {config}: {shared} ranks of this job compute the same sequences "
            "(zero.tensor_ranks, zero.sequence_ranks), and that config would leave it out; use "
            "--print job"
        )
    tree = found.configs(row)[config]
    if config == "job":
        sys.stdout.write(job_text(tree))
    elif config == "deepspeed":
        sys.stdout.write(json.dumps(tree, indent=2) + "\n")
    else:
        sys.stdout.write(tree)
    return 0
