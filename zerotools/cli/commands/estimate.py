"""`zerotools estimate`: will it fit, with which stage, and what takes the memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.estimate_page import page
from zerotools.cli.options.config_options import Configs, config_options, read_job_file
from zerotools.cli.options.declared import options_of
from zerotools.cli.options.grouped import OUTPUT, GroupedCommand, option
from zerotools.cli.options.shared import json_option
from zerotools.cli.output import render
from zerotools.core.errors import EXIT_DONE, EXIT_TOO_LARGE, BadRequest, ZerotoolsError
from zerotools.jobs.estimating.estimating import Estimate
from zerotools.jobs.estimating.job_workload import is_job_file
from zerotools.jobs.estimating.launched import WITH_CONFIG, job_with_config
from zerotools.jobs.estimating.written import job_text
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.public.memory_estimate import (
    EstimateKeywords,
    estimated_job,
    estimated_model,
    refuse_fixed,
)
from zerotools.public.options.machine_options import given_machine
from zerotools.public.options.option import bound

_CONFIGS = ("job", "deepspeed", "accelerate")


@click.command("estimate", cls=GroupedCommand)
@click.argument("model", metavar="MODEL|JOBFILE")
@options_of(EstimateKeywords)
@option(
    "--print",
    "config",
    group=OUTPUT,
    type=click.Choice(_CONFIGS),
    help="Print the config that asks for what was chosen, and nothing else.",
)
@config_options
@json_option
def command(model: str, config: str | None, configs: Configs, as_json: bool, **options: Any) -> int:
    """Predict the memory that a training needs, and find the fastest ZeRO stage that fits.

    MODEL is a Hugging Face model directory or config.json, a checkpoint of any format, or a number
    of parameters such as 7B. Options describe its training, or --deepspeed or --accelerate does.
    JOBFILE has all of this already. Weights are not loaded: shapes come from configs and headers.
    The exit status is 7 if no row fits, or if the job as it is written does not fit.
    """
    found = _estimated(model, configs, bound(EstimateKeywords, options))
    if config is not None and as_json:
        raise BadRequest("--print and --json exclude each other; the JSON has all `configs`")
    if config is not None:
        return _print_config(found, config)
    if as_json:
        render.print_json(found.to_json())
    else:
        render.print_lines(page(found))
    return EXIT_DONE if found.fits else EXIT_TOO_LARGE


def _estimated(model: str, configs: Configs, given: Mapping[str, Any]) -> Estimate:
    if configs.lenient and not configs.any:
        raise BadRequest("--lenient is for a config; give --deepspeed or --accelerate")
    machine = given_machine(given)
    named = is_job_file(Path(model))
    if not named and not configs.any:
        return estimated_model(model, machine.machine(), given)
    refuse_fixed(model if named else "the config", given, () if named else WITH_CONFIG)
    job = read_job_file(model) if named else job_with_config(model, machine.gpus, given)
    if configs.any or isinstance(job.tree.get("deepspeed"), dict):
        imported = configs.imported(job)
        if imported.problem is not None:
            raise _without_batch(imported.problem, named=named)
        spec = imported.spec
        assert spec is not None, "a job file was given"
    else:
        spec = job_from_tree(job.tree, source=job.source, base_dir=job.base_dir)
    return estimated_job(spec, machine, given)


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
