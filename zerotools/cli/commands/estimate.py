"""`zerotools estimate`: predict whether a training fits, at which ZeRO stage, and its memory."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.estimate_page import page, wrapped
from zerotools.cli.options.click_options import (
    OUTPUT,
    GroupedCommand,
    json_option,
    option,
    options_of,
)
from zerotools.cli.options.import_options import Configs, config_options, read_job_file
from zerotools.cli.output import render
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DONE, EXIT_TOO_LARGE, BadRequest, ZerotoolsError
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.jobs.memory_estimates.fill_missing_keys import (
    WITH_CONFIG,
    job_with_config,
    whole_job,
    without_placeholders,
)
from zerotools.jobs.memory_estimates.job_workload import is_job_file
from zerotools.jobs.memory_estimates.training_estimate import Estimate, assumed_length
from zerotools.jobs.memory_estimates.write_configs import keys_text
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.ops.estimate.fit_search import Way
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.estimate_memory import (
    EstimateKeywords,
    estimated_job,
    estimated_model,
    given_machine,
    refuse_fixed,
)

_CONFIGS = ("job", "deepspeed", "accelerate")


@click.command("estimate", cls=GroupedCommand)
@click.argument("model", metavar="MODEL|JOBFILE")
@options_of(EstimateKeywords)
@option(
    "--print",
    "config",
    group=OUTPUT,
    type=click.Choice(_CONFIGS),
    help="Print only a config with the chosen settings.",
)
@option(
    "--write",
    group=OUTPUT,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a job file with the chosen settings; the file must not exist.",
)
@option(
    "--way",
    group=OUTPUT,
    type=click.IntRange(1),
    metavar="N",
    help="Use entry N of the list of settings that fit.  [default: the cheapest]",
)
@config_options
@json_option
def command(
    model: str,
    config: str | None,
    write: Path | None,
    way: int | None,
    configs: Configs,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict the memory that a training needs, and find the cheapest settings that fit.

    MODEL is a Hugging Face model directory or config.json, a checkpoint of any format, or a number
    of parameters such as 7B. The training of MODEL is described by options, or by the config of
    --deepspeed or --accelerate. A JOBFILE describes both. Weights are not loaded: shapes come from
    configs and headers. If the training does not fit, the smallest sets of changes that make it fit
    are listed, the cheapest first, each with its memory and its keys. The exit status is 7 if the
    job of a JOBFILE does not fit as it is written, or if no changes make the training of MODEL fit
    on these GPUs.
    """
    found = _estimated(model, configs, bind_options(EstimateKeywords, options))
    if config is not None and as_json:
        raise BadRequest(
            "--print and --json exclude each other; leave --print out, because the JSON has all "
            "configs"
        )
    if way is not None and config is None and write is None:
        raise BadRequest("--way works only with --print or --write; add one of these options")
    # What --print refuses is refused before --write writes a file.
    printed = None if config is None else _config_text(found, config, _chosen(found, way))
    if write is not None:
        _write(found, write, _chosen(found, way))
    if printed is not None:
        sys.stdout.write(printed)
        return EXIT_DONE
    if as_json:
        render.print_json(found.to_json())
    else:
        render.print_lines(page(found))
    return EXIT_DONE if found.fits else EXIT_TOO_LARGE


def _estimated(model: str, configs: Configs, given: Mapping[str, Any]) -> Estimate:
    if configs.lenient and not configs.any:
        raise BadRequest(
            "--lenient repairs a config, and no config was given; give --deepspeed or --accelerate"
        )
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
        assert spec is not None, "an import without a problem has a job"
    else:
        spec = job_from_tree(job.tree, source=job.source, base_dir=job.base_dir)
    found = estimated_job(spec, machine, given)
    if named:
        return found
    assert found.job is not None
    assumed = None if given["sequence_length"] else assumed_length(found.work.model)
    return replace(found, job=without_placeholders(found.job), assumed=assumed)


def _without_batch(problem: ZerotoolsError, *, named: bool) -> ZerotoolsError:
    """Return `problem`. If it is a missing batch size, return an error that names the option
    --batch."""
    if named or "train.batch_size: is missing" not in str(problem):
        return problem
    return BadRequest(
        "the config does not say how many sequences a GPU computes at a time; give --batch N"
    )


def _chosen(found: Estimate, number: int | None) -> Way:
    """Return the suggestion with the number `number`. By default return the cheapest suggestion
    that meets the request.

    Raises:
        BadRequest: the suggestion does not exist, or it needs several nodes.
    """
    best = found.search.best
    if number is not None and number > len(found.ways):
        fit = f"{count_text(len(found.ways), 'way')} {'fits' if len(found.ways) == 1 else 'fit'}"
        raise BadRequest(f"--way {number}: only {fit}; name one of them")
    chosen = best if number is None else found.ways[number - 1]
    if chosen is None:
        others = f"; use --way 1 for {found.ways[0].words}" if found.ways else ""
        raise BadRequest(f"no config fits: {found.choice.reason}{others}")
    if found.machine.node_ranks is not None:
        raise BadRequest(
            "--print and --write make a config for one machine, but this job has [rendezvous]; "
            "change [zero] and [offload] in its job file by hand"
        )
    return chosen


def _write(found: Estimate, path: Path, way: Way) -> None:
    tree = found.job_of(way)
    if "deepspeed" in tree:
        raise BadRequest(
            "--write: DeepSpeed's config sets the stage and offload of this job; change that "
            f"config: {keys_text(found.keys_of(way))}"
        )
    text, said = to_toml(tree, {}), [f"wrote {path}"]
    if not tree["train"].keys() & {"steps", "epochs"}:  # not of a job file
        whole = whole_job(found, way, tree)
        text, said = whole.text, [*said, *whole.advice]
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadRequest(f"{path}: exists already; name another file with --write") from None
    except OSError as error:
        raise BadRequest(
            f"{path}: cannot be written: {error.strerror}; name another file"
        ) from None
    sys.stderr.writelines(f"{line}\n" for each in said for line in wrapped(each))
    command = f"zerotools submit {shlex.quote(str(path))} --dry-run"
    sys.stderr.write(f"next: {render.clean(command)}\n")


def _config_text(found: Estimate, config: str, way: Way) -> str:
    micro, shared = way.work.micro, way.row.layout.tensor_ranks
    shared *= 1 if micro is None else micro.sequence_ranks
    if config != "job" and shared > 1:
        raise BadRequest(
            f"--print {config}: {shared} ranks of this job compute the same sequences "
            "(zero.tensor_ranks, zero.sequence_ranks), but this config cannot express that; use "
            "--print job"
        )
    if config != "job" and way.of_the_program:
        left_out = f"{way.of_the_program}: the config has no key for it; set it in your program"
        sys.stderr.writelines(f"{line}\n" for line in wrapped(left_out))
    tree = found.configs(way)[config]
    if config == "job":
        return whole_job(found, way, tree).text
    return json.dumps(tree, indent=2) + "\n" if config == "deepspeed" else str(tree)
