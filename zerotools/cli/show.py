"""`zerotools show`: everything about one job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from zerotools.cli import picture, render
from zerotools.cli.chart import chart
from zerotools.cli.curves import Curves, curves_of
from zerotools.cli.describe import (
    Job,
    checkpoint_path,
    exported_model,
    is_over,
    loss,
    plan,
    steps,
    title,
)
from zerotools.cli.jobreference import find_job, job_argument
from zerotools.cli.options import json_option, socket_option
from zerotools.cli.progress import figures, speed, time_left
from zerotools.cli.style import paint_state
from zerotools.core.errors import BadRequest
from zerotools.jobs.client import DaemonClient
from zerotools.jobs.convert import plain
from zerotools.jobs.dataspec import PREDICTIONS
from zerotools.jobs.states import SUCCEEDED

PIPED_COLUMNS = 80
ATTEMPT_HEADERS = (
    "attempt",
    "state",
    "started",
    "lasted",
    "steps",
    "peak host",
    "peak GPU",
    "exit",
    "why it ended",
)


@click.command("show")
@job_argument
@click.option("--spec", "whole_spec", is_flag=True, help="The job file with every default.")
@click.option("--plot", is_flag=True, help="Draw the loss and the memory instead.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --plot: draw into a .png, .svg or .pdf.",
)
@socket_option
@json_option
def command(
    reference: str | None,
    whole_spec: bool,
    plot: bool,
    output: Path | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Show one job: its state and why, its attempts with their peaks of memory, its checkpoints.

    JOB is a number or a name; without it, the newest job is meant.

    With --plot, draw its loss and memory by step in the terminal, or with -o as a picture, for
    which matplotlib must be installed (pip install 'zerotools[plot]').

    Values of environment variables are never shown.
    """
    _check_options(plot, output, as_json)
    client = DaemonClient(socket)
    job = find_job(client, reference)
    if plot:
        _plot(job, curves_of(client, job), output)
    elif as_json:
        render.print_json(job)
    else:
        columns = render.terminal_columns(sys.stdout)
        render.print_lines(page(job, columns, whole_spec=whole_spec))


def _check_options(plot: bool, output: Path | None, as_json: bool) -> None:
    if output is not None and not plot:
        raise BadRequest(f"-o {output}: is for --plot; give both")
    if plot and as_json:
        raise BadRequest("--plot is a drawing; for numbers read metrics.jsonl in the output_dir")
    if output is not None:
        picture.check_name(output)


def _plot(job: Job, curves: Curves, output: Path | None) -> None:
    if output is not None:
        picture.save(curves, title(job), output)
        click.echo(f"drawn: {output}")
        return
    columns = render.terminal_columns(sys.stdout) or PIPED_COLUMNS
    render.print_lines(charts(curves, columns, braille=_has_braille(sys.stdout)))


def _has_braille(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def charts(curves: Curves, columns: int, *, braille: bool) -> list[str]:
    """Lines that show all curves there are, and the loss in any case."""
    drawn = [
        ("loss", curves.loss, render.loss, None),
        ("loss of evaluations", curves.eval_loss, render.loss, None),
        ("host memory of rank 0", curves.host_bytes, render.size, 0.0),
        ("GPU memory, most so far", curves.gpu_bytes, render.size, 0.0),
    ]
    lines: list[str] = []
    for name, points, form, least in drawn:
        if points or name == "loss":
            drawing = chart(name, points, form, columns=columns, braille=braille, least=least)
            lines += ["", *drawing]
    return lines[1:]


def page(job: Job, columns: int | None, *, whole_spec: bool = False) -> list[str]:
    """Lines of the page."""
    state = paint_state(str(job["state"]).replace("_", " "), sys.stdout)
    lines = [f"{title(job)}: {state}"]
    lines += render.fields(_facts(job), indent=2)
    if job["attempts"]:
        rows = [_attempt_row(attempt) for attempt in job["attempts"]]
        right = ("attempt", "lasted", "steps", "peak host", "peak GPU")
        lines += [
            "",
            *render.table_and_remarks(ATTEMPT_HEADERS, rows, right=right, columns=columns),
        ]
    spec = job["spec"] if whole_spec else set_keys(job["spec"])
    lines += ["", "job file" if whole_spec else "job file (its defaults: --spec)"]
    return lines + render.fields(flatten(spec), indent=2)


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    yield "why", job["reason"] or ""
    yield "plan", plan(job)
    if job["progress"]:
        yield "progress", f"step {steps(job)}, loss {loss(job['progress'])}"
        yield "last step", figures(job["progress"])
        yield "speed", speed(job["progress"])
        if not is_over(job):
            yield "left", time_left(job["progress"])
    yield "queued", render.moment(job["created"])
    if job["started"]:
        yield "started", render.moment(job["started"])
    if job["ended"]:
        yield "ended", render.moment(job["ended"])
    yield "output", str(job["output_dir"])
    yield "checkpoint", checkpoint_path(job) or "none yet"
    if job["started"] and job["spec"].get("eval", {}).get("predict_with_generate"):
        yield "predictions", f"{job['output_dir']}/{PREDICTIONS}"
    yield "model", exported_model(job)
    yield "user", f"uid {job['uid']}"
    done = job["state"] == SUCCEEDED and not job["reason"]  # with one, its export has failed
    if is_over(job) and not done and job["latest_checkpoint"]:
        yield "go on", f"zerotools resume {job['id']}"
    yield "log", f"zerotools logs {'' if is_over(job) else '-f '}{job['id']}"


def _attempt_row(attempt: Mapping[str, Any]) -> tuple[str, ...]:
    lasted = None
    if attempt["started"] and attempt["ended"]:
        lasted = attempt["ended"] - attempt["started"]
    return (
        str(attempt["number"]),
        str(attempt["state"]),
        _without_year(attempt["started"]),
        render.duration(lasted),
        str(attempt["steps_done"]),
        render.size(attempt["peak_host_bytes"]),
        render.size(attempt["peak_gpu_bytes"]),
        _exit(attempt),
        attempt["cause"] or "",
    )


def _without_year(unix_seconds: float | None) -> str:
    """The row has to fit into 80 columns, and the facts above it have the year."""
    return render.UNKNOWN if unix_seconds is None else render.moment(unix_seconds)[5:]


def _exit(attempt: Mapping[str, Any]) -> str:
    if attempt["signal"] is not None:
        return f"signal {attempt['signal']}"
    return render.UNKNOWN if attempt["exit_code"] is None else str(attempt["exit_code"])


def set_keys(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job file whose values are not the defaults, and those that this version does
    not know."""
    from zerotools.jobs.imports.jobkeys import default_of, job_keys

    known = job_keys()

    def kept(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and key not in known:
                if inner := dict(kept(value, f"{key}.")):
                    yield name, inner
            elif key not in known or value not in (plain(default_of(key)), {}):
                yield name, value

    return dict(kept(spec, ""))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`train.steps` and `40` for every key, as a job file would have it."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, json.dumps(value, ensure_ascii=False)
