"""`zerotools inspect`: show the contents of a checkpoint, from its metadata, and statistics of its
values on request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zerotools import formats
from zerotools.cli.options.click_options import (
    OUTPUT,
    CheckpointPath,
    GroupedCommand,
    html_option,
    option,
    options_of,
    pager_option,
)
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.messages import command_name
from zerotools.cli.output.pager import print_paged
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES, ZerotoolsError
from zerotools.core.layer_names import in_order_of_numbers
from zerotools.formats.list_run_checkpoints import RunCheckpoint, RunListing
from zerotools.ops.inspection.inspect import Inspection
from zerotools.ops.inspection.next_commands import is_model
from zerotools.ops.inspection.training_summary import CheckpointSummary, json_value
from zerotools.public.inspect_checkpoint import InspectKeywords, InspectResult, inspect

if TYPE_CHECKING:
    from zerotools.ops.statistics.checkpoint_statistics import CheckpointStatistics


@click.command("inspect", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@options_of(InspectKeywords)
@option(
    "--tensors",
    group=OUTPUT,
    is_flag=True,
    help="List every tensor, with its chunks and files.",
)
@option(
    "-v",
    "--verbose",
    group=OUTPUT,
    is_flag=True,
    help="Also list the roles of tensors, the param groups, the files, and the checkpoints of "
    "the run.",
)
@pager_option
@html_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.inspect/1).")
def command(
    path: Path,
    tensors: bool,
    verbose: bool,
    pager: str,
    html: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Show the format, world size, step, parameters, optimizer state and problems of PATH.

    For the directory of a run, it shows the newest checkpoint, the program that wrote it, the
    number of checkpoints, and the next command. Tensor data is read only with --stats. Exit status
    1 means that the checkpoint has problems.
    """
    if html is not None:
        from zerotools.ops.picture.html_page import check_page_target, write_page

        check_page_target(html)  # checked before the file is read for an hour
    source = click.get_current_context().get_parameter_source
    chosen = {k: v for k, v in given.items() if source(k) is not ParameterSource.DEFAULT}
    with shown_progress() as progress:
        found = inspect(path, progress=progress, **chosen)
    if html is not None:
        write_page(html, found.to_html())
    if as_json:
        render.print_json(found.to_json(chunks=tensors))
    else:
        lines = _head(found.inspection)
        if html is None or tensors:
            verbose = verbose or tensors
            lines = describe(
                found.inspection, tensors=tensors, verbose=verbose, statistics=found.statistics
            )
            lines += [] if found.run is None else _run(found.run, verbose=verbose)
            lines += _next(found)
        if html is not None:
            lines.append(render.page_line(html))
        print_paged(lines, pager)
    return EXIT_DIFFERENCES if found.problems else 0


def describe(
    inspection: Inspection,
    *,
    tensors: bool,
    verbose: bool = False,
    statistics: CheckpointStatistics | None = None,
) -> list[str]:
    """Return the lines to print, beginning with the facts about the checkpoint.

    `verbose` adds tables of roles, param groups and files. `tensors` adds a line for each tensor,
    and `statistics` adds a line about the values of each tensor.
    """
    lines = [*_head(inspection), *_facts(inspection, verbose=verbose)]
    if verbose:
        lines += ["", *_roles(inspection)]
        if inspection.run.training.groups:
            lines += ["", *_groups(inspection.run)]
        if inspection.checkpoint.aliases:
            lines += ["", *_fold([f"tied: {_tied(inspection)}"])]
        lines += ["", *_files(inspection, numbered=tensors)]
    if tensors:
        lines += ["", *_tensors(inspection)]
    if statistics is not None:
        lines += ["", *_statistics(statistics)]
    lines += _fold(f"note: {render.clean(note)}" for note in inspection.notes)
    return [*lines, *_fold(_problems(inspection))]


def _fold(lines: Iterable[str]) -> list[str]:
    """Return the lines, folded between words to the width of the terminal."""
    columns = render.terminal_columns()
    return [part for line in lines for part in render.folded(line, columns, 4)]


def _tied(inspection: Inspection) -> str:
    aliases = inspection.checkpoint.aliases
    return ", ".join(f"{alias} = {name}" for alias, name in aliases.items())


MAX_PROBLEMS = 8
MAX_AFFECTED = 8


def _head(inspection: Inspection) -> list[str]:
    """Return the verdict on the checkpoint, which is printed first."""
    if not inspection.problems:
        reads = f"{command_name()} verify reads the data"
        first, *others = _fold([f"COMPLETE according to its metadata; {reads}"])
        verdict = paint("COMPLETE", "good", sys.stdout)
        return [first.replace("COMPLETE", verdict), *others, ""]
    if not inspection.incomplete:
        count = len(inspection.problems)
        return [paint(f"PROBLEMS: {count}, listed below", "warning", sys.stdout), ""]
    tensors = count_text(len(inspection.incomplete), "tensor")
    parts = [f"{tensors} affected"]
    if inspection.affected:
        lost = len(inspection.affected) == len(inspection.missing)
        files = len(set(inspection.checkpoint.files) | set(inspection.affected))
        what = "missing" if lost else "missing or damaged"
        total = count_text(files, "file")
        parts = [f"{len(inspection.affected)} of {total} {what}", *parts]
    lines = _fold([f"INCOMPLETE: {', '.join(parts)}"])
    return [*(paint(line, "bad", sys.stdout) for line in lines), ""]


def _problems(inspection: Inspection) -> list[str]:
    """Return a line for each problem. All tensors that a missing file contained share one line."""
    consequences = {key.name for key in inspection.incomplete} if inspection.affected else set()
    problems = [
        problem
        for problem in inspection.problems
        if problem.file or problem.tensor not in consequences
    ]
    lines = [f"problem: {render.clean(problem.message)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"... and {len(problems) - MAX_PROBLEMS} more problems (--json lists all)")
    if consequences:
        names = [str(key) for key in inspection.incomplete]
        more = len(names) - MAX_AFFECTED
        shown = ", ".join(names[:MAX_AFFECTED]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"affected: {count_text(len(names), 'tensor')}: {render.clean(shown)}")
    return lines


def _facts(inspection: Inspection, *, verbose: bool) -> list[str]:
    origin = inspection.checkpoint.origin
    version = f" ({origin.framework_version})" if origin.framework_version else ""
    others = f" (also {', '.join(origin.other_tags)})" if origin.other_tags else ""

    files = count_text(len(inspection.checkpoint.files), "file")
    tied = "" if verbose else _tied(inspection)
    if render.width(tied) > LONGEST_FACT:
        tied = count_text(len(inspection.checkpoint.aliases), "name")

    def text_or_empty(value: object) -> str:
        return "" if value is None else str(value)

    return render.fields(
        [
            ("path", str(origin.path)),
            ("format", f"{origin.title or origin.format}{version}"),
            ("program", _program(inspection.checkpoint)),
            ("tag", f"{origin.tag}{others}" if origin.tag else ""),
            ("step", _step(inspection)),
            ("ZeRO stage", text_or_empty(origin.stage)),
            ("world size", text_or_empty(origin.world_size)),
            ("parameters", _parameters(inspection.run)),
            ("types", _types(inspection.run)),
            ("quantised", inspection.quantisation.words()),
            ("optimizer", _optimizer(inspection.run)),
            ("groups", "" if verbose else _group_line(inspection.run)),
            ("loss scaler", _scaler(inspection.run)),
            ("tensors", "" if verbose else _role_line(inspection)),
            ("tied", tied),
            (
                "size",
                (
                    f"{render.size(inspection.file_bytes)} in {files}, including "
                    f"{render.size(inspection.unclaimed_bytes)} of headers and padding"
                ),
            ),
        ],
        columns=render.terminal_columns(),
    )


def _step(inspection: Inspection) -> str:
    """Return the step, and the number of skipped steps if there are any: `500 (2 skipped)`."""
    if inspection.step is None:
        return ""
    skipped = inspection.run.training.skipped
    return f"{inspection.step} ({skipped} skipped)" if skipped else str(inspection.step)


def _program(checkpoint: Checkpoint) -> str:
    """Return the version of zerotools and the engine, as `zerotools 1.2.0, engine torch`, if a job
    saved the checkpoint. Return an empty string if no job did, and the error if the job's record
    cannot be read.
    """
    try:
        record = formats.format_of(checkpoint).job_record(checkpoint)
    except (ZerotoolsError, OSError) as error:
        return f"not known: {error}"
    if record is None:
        return ""
    parts = [f"zerotools {record.zerotools_version or ''}".strip(), f"engine {record.engine}"]
    parts += [f"made from {record.made_from}"] if record.made_from else []
    return ", ".join(parts)


LONGEST_FACT = 66
"""Facts with more columns than this are cut; `--verbose` shows them whole."""


def _role_line(inspection: Inspection) -> str:
    """Return the number of tensors of each role, as `9 param, 7 exp_avg`."""
    return ", ".join(f"{role.tensors} {role.role}" for role in inspection.roles)


def _group_line(run: CheckpointSummary) -> str:
    """Return the number of param groups with their learning rates, as `2: lr 0.01, 0.02`."""
    groups = run.training.groups
    rates = [f"{group.options['lr']:.4g}" for group in groups if _has_rate(group.options)]
    if not rates:
        return str(len(groups) or "")
    text = f"{len(groups)}: lr {', '.join(dict.fromkeys(rates))}"
    return render.shorten(text, LONGEST_FACT)


def _has_rate(options: Mapping[str, Any]) -> bool:
    return isinstance(options.get("lr"), int | float)


def _parameters(run: CheckpointSummary) -> str:
    parts = []
    if run.trainable is not None:
        parts.append(f"{run.trainable:,} trainable")
    if run.frozen:
        parts.append(f"{run.frozen:,} frozen")
    if run.shared:
        parts.append(f"{run.shared:,} more under tied names are not counted")
    return f"{run.parameters:,}" + (f" ({', '.join(parts)})" if parts else "")


def _types(run: CheckpointSummary) -> str:
    if run.masters_dtype and run.masters_dtype != run.weights_dtype:
        return f"{run.weights_dtype}, masters {run.masters_dtype}"
    return run.weights_dtype or ""


def _optimizer(run: CheckpointSummary) -> str:
    if not run.has_optimizer:
        return ""
    known = (run.training.optimizer, run.training.optimizer_wrapper)
    names = " in ".join(name for name in known if name)
    states = ", ".join(run.states) or "no state"
    return f"{names}: {states}" if names else states


def _scaler(run: CheckpointSummary) -> str:
    """Return the loss scale and its kind, as `65536, dynamic`; empty if the run does not scale its
    loss.
    """
    scaler = run.training.loss_scale
    return f"{scaler.scale:g}, {'dynamic' if scaler.dynamic else 'static'}" if scaler else ""


SHOWN_HYPERPARAMETERS = ("lr", "weight_decay", "betas", "eps", "momentum")


def _groups(run: CheckpointSummary) -> list[str]:
    rows = []
    for number, (group, count) in enumerate(
        zip(run.training.groups, run.group_elements, strict=True)
    ):
        values = {name: _rounded(json_value(value)) for name, value in group.options.items()}
        shown = (f"{k} {values[k]}" for k in SHOWN_HYPERPARAMETERS if k in values)
        elements = "-" if count is None else f"{count:,}"
        rows.append((str(number), str(len(group.params)), elements, ", ".join(shown)))
    headers = ("GROUP", "TENSORS", "ELEMENTS", "HYPER-PARAMETERS")
    return render.table(headers, rows, right=("GROUP", "TENSORS", "ELEMENTS"))


def _rounded(value: Any) -> Any:
    """Return a number with six significant digits, and other values as they are."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _roles(inspection: Inspection) -> list[str]:
    rows = (
        (
            role.role,
            str(role.tensors),
            f"{role.elements:,}",
            render.size(role.bytes),
            ", ".join(role.dtypes),
        )
        for role in inspection.roles
    )
    headers = ("ROLE", "TENSORS", "ELEMENTS", "SIZE", "TYPE")
    return render.table(headers, rows, right=("TENSORS", "ELEMENTS", "SIZE"))


MAX_FILES = 16


def _files(inspection: Inspection, *, numbered: bool) -> list[str]:
    """Return the lines about the files, with their sizes.

    If tensors are listed, all files are shown and numbered, because the lines of the tensors refer
    to the numbers.
    """
    files = list(inspection.checkpoint.files.items())
    if numbered:
        rows = [(str(n), name, render.size(count)) for n, (name, count) in enumerate(files)]
        return render.table(("#", "FILE", "SIZE"), rows, right=("#", "SIZE"))
    short = [(name, render.size(count)) for name, count in files[:MAX_FILES]]
    lines = render.table(("FILE", "SIZE"), short, right=("SIZE",))
    if len(files) > MAX_FILES:
        lines.append(f"... and {len(files) - MAX_FILES} more (--json lists all)")
    return lines


MAX_CHECKPOINTS = 12


def _run(run: RunListing, *, verbose: bool) -> list[str]:
    """Return the lines about the run: the number of its checkpoints, or, with `verbose`, a table of
    them."""
    named = f"a run of {run.program} in {render.clean(str(run.path))}:"
    if not verbose:
        broken = sum(checkpoint.fault is not None for checkpoint in run.checkpoints)
        unfinished = f", {broken} of them unfinished" if broken else ""
        count = count_text(len(run.checkpoints), "checkpoint")
        return _fold([f"{named} {count}{unfinished} (-v lists them)"])
    rows = [
        (
            render.clean(checkpoint.name),
            "" if checkpoint.step is None else str(checkpoint.step),
            "" if checkpoint.format is None else formats.FORMATS[checkpoint.format].title,
            ", ".join(checkpoint.models),
            _state(checkpoint),
        )
        for checkpoint in run.checkpoints[:MAX_CHECKPOINTS]
    ]
    headers = ("CHECKPOINT", "STEP", "FORMAT", "MODELS", "STATE")
    lines = [
        "",
        named,
        *render.table(headers, rows, right=("STEP",)),
    ]
    if (more := len(run.checkpoints) - MAX_CHECKPOINTS) > 0:
        lines.append(f"... and {more} older (--json lists all)")
    return lines


def _next(found: InspectResult) -> list[str]:
    """Return the lines with commands that the user may run next."""
    if found.run is not None and not found.next and is_model(found.inspection):
        return ["next: nothing needs to be merged; from_pretrained loads this model directly"]
    return [f"next: {render.clean(command)}" for command in found.next]


def _state(checkpoint: RunCheckpoint) -> str:
    if checkpoint.fault is not None:
        return f"unfinished: {render.clean(checkpoint.fault)}"
    return "shown above" if checkpoint.is_taken else ""


def _tensors(inspection: Inspection) -> list[str]:
    numbers = {name: number for number, name in enumerate(inspection.checkpoint.files)}
    rows = []
    for key in in_order_of_numbers([*inspection.checkpoint.tensors]):
        tensor = inspection.checkpoint.tensors[key]
        files = {numbers[chunk.file] for chunk in tensor.chunks if chunk.file in numbers}
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        count = str(len(tensor.chunks))
        rows.append(
            (key.name, key.role, tensor.dtype.name, shape, count, render.spans(sorted(files)))
        )
    headers = ("TENSOR", "ROLE", "TYPE", "SHAPE", "CHUNKS", "FILES (#)")
    return render.table(headers, rows, right=("CHUNKS",))


def _statistics(statistics: CheckpointStatistics) -> list[str]:
    """Return the lines about the values of each tensor, and about outliers."""
    rows = [
        (
            *map(render.number, (found.least, found.greatest, found.mean, found.norm)),
            str(found.zeros),
            str(found.nans + found.infinities),
            key.role,
            key.name,
        )
        for key in in_order_of_numbers([*statistics.tensors])
        for found in (statistics.tensors[key],)
    ]
    headers = ("MIN", "MAX", "MEAN", "NORM", "ZEROS", "NAN/INF", "ROLE", "TENSOR")
    columns = render.terminal_columns()
    lines = render.table_and_remarks(headers, rows, right=headers[:6], columns=columns)
    lines += _fold(
        f"{render.clean(str(key))}: stored as {render.clean(words)}"
        for key, words in statistics.stored_as.items()
        if key in statistics.tensors
    )
    return lines + _fold(
        f"outlier: {render.clean(str(key))}: {why}" for key, why in statistics.outliers.items()
    )
