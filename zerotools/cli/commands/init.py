"""`zerotools init`: write a job file that fits the machine, after a few questions."""

from __future__ import annotations

import glob
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_views.estimate_page import wrapped
from zerotools.cli.options.click_options import (
    JOB,
    OUTPUT,
    GroupedCommand,
    json_option,
    option,
    options_of,
)
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import EXTRAS, REQUIREMENTS, install_command
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.jobs.memory_estimates.find_models_and_data import (
    CONFIG,
    MOST_ENTRIES,
    FoundData,
    data_in,
    data_of,
    models_in,
)
from zerotools.jobs.memory_estimates.first_job import (
    FULL,
    METHODS,
    FirstJob,
    FirstTraining,
    first_job,
)
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.ops.estimate.fit_search import Way
from zerotools.ops.estimate.recommendation import MOST_TOKENS, gib_text
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.estimate_memory import GivenMachine, MachineOptions, given_machine
from zerotools.sensors.snapshot import BF16_CAPABILITY, Snapshot

_INTRODUCTION = "# Made by zerotools init. zerotools estimate {name} shows other settings.\n\n"


@click.command("init", cls=GroupedCommand)
@option(
    "-o",
    "--output",
    group=OUTPUT,
    type=click.Path(path_type=Path),
    default=Path("job.toml"),
    metavar="FILE",
    help="The job file to write; it must not exist.  [default: job.toml]",
)
@option(
    "--model",
    group=JOB,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model directory, or a config.json.  [default: init asks; with --yes, the first "
    "model in this directory]",
)
@option(
    "--data",
    group=JOB,
    metavar="PATH",
    help="The data: a file, a directory or a pattern of files.  [default: init asks, or takes "
    "the first here]",
)
@option(
    "--method",
    group=JOB,
    type=click.Choice(METHODS),
    help="Train all weights, adapters (LoRA), or adapters of a base model in 4 bits (QLoRA).  "
    "[default: init asks; with --yes, full]",
)
@option(
    "--way",
    group=JOB,
    type=click.IntRange(1),
    metavar="N",
    help="Use entry N of the list of settings that fit.  [default: the cheapest]",
)
@option(
    "--sequence-length",
    group=JOB,
    type=click.IntRange(1, MOST_TOKENS),
    metavar="TOKENS",
    help="Length of a sequence in tokens.  [default: the longest that the model allows, at most "
    "2048]",
)
@options_of(MachineOptions)
@click.option("-y", "--yes", is_flag=True, help="Ask nothing; use what this machine has.")
@json_option
def command(
    output: Path,
    model: Path | None,
    data: str | None,
    method: str | None,
    way: int | None,
    sequence_length: int | None,
    yes: bool,
    as_json: bool,
    **machine: Any,
) -> int:
    """Ask for a model, data, method and GPUs, and write a job file that fits the machine.

    Each question has a default from this directory and this machine. Text is for continued
    pretraining, examples are for fine-tuning, preferences are for DPO. The command offers the
    settings that zerotools estimate suggests; the default is the cheapest. Each key of the job file
    has a comment.
    """
    if not yes and not sys.stdin.isatty():
        raise BadRequest("init asks questions, but has no terminal; use --yes and --model DIR")
    if not output.parent.is_dir():
        raise BadRequest(f"{output}: {output.parent} is not a directory; make it first")
    if output.exists():
        raise BadRequest(f"{output}: exists already; remove it, or name another file with -o")
    snapshot = _snapshot()
    chosen = _model(model, yes=yes)
    seen = _data(data, yes=yes)
    method = method or _method(yes=yes)
    where = _machine(given_machine(bind_options(MachineOptions, machine)), snapshot, yes=yes)
    wanted = FirstTraining(
        model=chosen.absolute(),
        data=seen,
        precision=_precision(snapshot, where),
        method=method,
        sequence=sequence_length,
        directory=output.parent,
        free_disk=shutil.disk_usage(output.parent).free,
    )
    choose = None if yes else _choose
    if way is not None:
        choose = partial(_of_number, way)
    job = first_job(wanted, where.machine(on_gpu=where.gpus != 0), choose)
    # An error is raised here if the daemon would refuse the job file.
    job_from_tree(job.tree, source=str(output), base_dir=Path.cwd())
    _write(output, job)
    if as_json:
        render.print_json(
            {
                "file": str(output),
                "job": job.tree,
                "way": [change.name.lower() for change in job.way.changes],
                "estimate": job.estimate.to_json(),
            }
        )
    else:
        render.print_lines(_summary_lines(output, job))
    return 0


def _snapshot() -> Snapshot:
    from zerotools.sensors.snapshot_source import (
        SnapshotSource,  # 30 ms, so it is imported after the checks
    )

    with SnapshotSource() as source:
        return source.read()


def _model(given: Path | None, *, yes: bool) -> Path:
    seen = next(models_in(Path.cwd()), None)
    if given is None and not yes:
        given = Path(_ask("Which model? A directory with a config.json", seen))
    given = seen if given is None else given
    if given is None:
        raise BadRequest(
            "this directory has no model (a directory with config.json); name one with --model"
        )
    if not given.exists():
        raise BadRequest(f"{given}: this model directory does not exist; correct the path")
    if given.is_dir() and not (given / CONFIG).is_file():
        raise BadRequest(f"{given}: has no config.json; pass the path of a model directory")
    return given


def _data(given: str | None, *, yes: bool) -> FoundData:
    seen = next(data_in(Path.cwd()), None)
    if given is None and not yes:
        given = _ask("Which data? A file, a directory or a pattern", seen and seen.pattern)
    if given is None:
        if seen is None:
            raise BadRequest(
                "this directory has no data (.jsonl, .json, .csv, .txt); name a file with --data"
            )
        return seen
    path = Path(given)
    found = data_of(path)
    if found is None and not path.exists():
        # The pattern is expanded as for a job.
        named = glob.iglob(given, recursive=True)  # noqa: PTH207
        first = min(islice(named, MOST_ENTRIES), default=None)
        kind = None if first is None else data_of(Path(first))
        found = None if kind is None else replace(kind, pattern=given)
    if found is None:
        raise BadRequest(
            f"{given}: has no supported data; give .txt files, or .jsonl, .json, .csv or .parquet "
            "files with the fields (text), (messages), (prompt, response), (instruction, output) "
            "or (prompt, chosen, rejected)"
        )
    return replace(found, pattern=str(Path(found.pattern).absolute()))


def _method(*, yes: bool) -> str:
    if yes:
        return FULL
    answer: str = click.prompt(
        "Train all weights (full), adapters (lora) or adapters of a base model in 4 bits (qlora)?",
        FULL,
        type=click.Choice(METHODS),
        show_choices=False,
        err=True,
    )
    return answer


def _of_number(number: int, ways: Sequence[Way]) -> Way:
    if number > len(ways):
        fit = "way fits" if len(ways) == 1 else "ways fit"
        listed = "".join(f"\n  {at}. {each.words}" for at, each in enumerate(ways, 1) if each.words)
        raise BadRequest(f"--way {number}: only {len(ways)} {fit} here; name one of them{listed}")
    return ways[number - 1]


def _choose(ways: Sequence[Way]) -> Way:
    """Show the suggestions that fit on the machine, and ask the user to choose one."""
    if len(ways) == 1:
        return ways[0]
    click.echo("These settings fit, the cheapest first:", err=True)
    for number, way in enumerate(ways, 1):
        row = way.row
        click.echo(
            f"{number}. {way.words or 'nothing changed'} ({way.slowdown.words}): "
            f"{gib_text(row.peak_bytes)} on each GPU, {gib_text(row.host_bytes)} of host memory",
            err=True,
        )
    answer = click.prompt("Which?", 1, type=click.IntRange(1, len(ways)), err=True)
    return ways[answer - 1]


def _machine(given: GivenMachine, snapshot: Snapshot, *, yes: bool) -> GivenMachine:
    """Return the machine that trains. 0 GPUs mean that the CPU trains."""
    seen = len(snapshot.gpus)
    if given.gpus is None and not yes:
        answer = click.prompt("How many GPUs? 0 trains on the CPU", seen, type=int, err=True)
        given = replace(given, gpus=max(0, answer))
    return replace(given, gpus=seen if given.gpus is None else given.gpus)


def _precision(snapshot: Snapshot, machine: GivenMachine) -> str:
    """Return `bf16` if all GPUs support it, `fp16` on older GPUs, and `fp32` on the CPU."""
    if machine.gpus == 0:
        return "fp32"
    known = [gpu.compute_capability for gpu in snapshot.gpus if gpu.compute_capability is not None]
    return "bf16" if all(capability >= BF16_CAPABILITY for capability in known) else "fp16"


def _ask(question: str, default: object) -> str:
    shown = None if default is None else str(default)
    answer: str = click.prompt(question, shown, err=True)
    return answer


def _write(output: Path, job: FirstJob) -> None:
    text = _INTRODUCTION.format(name=output.name) + to_toml(job.tree, job.comments)
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadRequest(f"{output}: exists already; name another file with -o") from None


def _summary_lines(output: Path, job: FirstJob) -> list[str]:
    way, reason = job.way, job.estimate.choice.reason
    if way != job.estimate.search.best and not way.is_as_asked:
        reason = f"{way.words} fits"
    lines = [f"wrote {output}: {reason}", *job.estimate.notes]
    for extra, key in (("lora", "rank"), ("qlora", "frozen_precision")):
        lacks = [name for name in EXTRAS[extra] if find_spec(name) is None]
        if lacks and key in job.tree.get("lora", {}):
            needs = [REQUIREMENTS[name] for name in lacks]
            lines.append(f"{', '.join(lacks)} is not installed: {install_command(*needs)}")
    lines = [line for each in lines for line in wrapped(each)]
    command = f"zerotools submit {shlex.quote(str(output))} --dry-run"
    return [*lines, "", f"next: {render.clean(command)}"]
