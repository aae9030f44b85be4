"""Curves of jobs: collected from the reports of their steps, and drawn in the terminal or as a
picture by matplotlib."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import click

from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint, wants_colour
from zerotools.cli.output.text_charts import FEWEST_ROWS, FRAME, ROWS, Series, SeriesPoints, chart
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import missing
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.step_curves import CurvePoints, Curves, output_dirs_of

PIPED_COLUMNS = 80
MARKS = "*o+x#@%&"
_COLOURS = ("good", "busy", "warning", "bad", "strong", "quiet")

NamedCurves = Sequence[tuple[str, Curves]]
"""The curves of each job, with the title of the job."""


def plot(named: NamedCurves, output: Path | None) -> None:
    """Draw the curves into the picture file `output`, or as text on stdout in the size of the
    terminal.
    """
    if output is not None:
        save(named, output)
        click.echo(f"drawn: {output}")
        return
    columns = render.terminal_columns(sys.stdout)
    height = None if columns is None else shutil.get_terminal_size().lines - 1
    braille = has_braille(sys.stdout) and (len(named) == 1 or wants_colour(sys.stdout))
    lines = charts(named, columns or PIPED_COLUMNS, braille=braille, height=height)
    render.print_lines(lines)


def has_braille(stream: TextIO) -> bool:
    """Return whether the encoding of the stream is a UTF encoding, which has braille characters."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def charts(
    named: NamedCurves, columns: int, *, braille: bool, height: int | None = None
) -> list[str]:
    """Return the titles of the jobs and a chart for each kind of curve, as lines.

    A kind without values has no chart, except the loss. If `height` is given and large enough, all
    charts together have `height` lines.
    """
    kinds: list[
        tuple[str, Callable[[Curves], SeriesPoints], Callable[[float], str], float | None]
    ] = [
        ("loss", lambda curves: curves.loss, render.loss, None),
        ("loss of evaluations", lambda curves: curves.eval_loss, render.loss, None),
        ("margin of rewards", lambda curves: curves.reward_margin, render.loss, None),
        ("accuracy of rewards", lambda curves: curves.reward_accuracy, render.loss, 0.0),
        ("host memory of rank 0", lambda curves: curves.host_bytes, render.size, 0.0),
        ("GPU memory, peak so far", lambda curves: curves.gpu_bytes, render.size, 0.0),
    ]
    drawn = [kind for kind in kinds if kind[0] == "loss" or any(kind[1](each) for _, each in named)]
    lines = _legend(named, braille=braille)
    rows = ROWS
    if height is not None:
        free = height - len(lines) - len(drawn) * (FRAME + 1)
        rows = max(FEWEST_ROWS, free // len(drawn))
    for name, points, form, least in drawn:
        series = [
            Series(points(curves), MARKS[n % len(MARKS)], _paint(n, len(named)))
            for n, (_, curves) in enumerate(named)
        ]
        lines += [
            "",
            *chart(name, series, form, columns=columns, braille=braille, least=least, rows=rows),
        ]
    return lines


def _paint(number: int, count: int) -> Callable[[str], str]:
    if count == 1:
        return lambda text: text
    return partial(paint, meaning=_COLOURS[number % len(_COLOURS)], stream=sys.stdout)


def _legend(named: NamedCurves, *, braille: bool) -> list[str]:
    if len(named) == 1:
        return [named[0][0]]
    mark = "━" if braille else ""
    return [
        f"{_paint(n, len(named))(mark or MARKS[n % len(MARKS)])} {title}"
        for n, (title, _) in enumerate(named)
    ]


ENDINGS = (".png", ".svg", ".pdf")
GIB = 2**30


def check_name(path: Path) -> None:
    """Raise BadRequest if `path` does not have the ending of a picture file."""
    if path.suffix.lower() not in ENDINGS:
        raise BadRequest(f"-o {path}: must end in {' or '.join(ENDINGS)}")


def save(named: Sequence[tuple[str, Curves]], path: Path) -> None:
    """Draw the loss and the memory of each job by step into the picture file `path`. The ending of
    `path` selects the format.

    Raises:
        BadRequest: matplotlib is not installed, or `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing(
            "a picture", "matplotlib", "leave -o out for a chart in the terminal"
        ) from None
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    loss, memory = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    figure.suptitle(_text(", ".join(title for title, _ in named)))
    for title, curves in named:
        of = f", {_text(title)}" if len(named) > 1 else ""
        _curve(loss, curves.loss, f"loss{of}", 1)
        _curve(loss, curves.eval_loss, f"evaluation{of}", 1, marker="o")
        _curve(memory, curves.host_bytes, f"host, rank 0{of}", GIB)
        _curve(memory, curves.gpu_bytes, f"GPU, peak so far{of}", GIB)
    loss.set_ylabel("loss")
    memory.set_ylabel("memory (GiB)")
    held = (curves for _, each in named for curves in (each.host_bytes, each.gpu_bytes))
    highest = max((value for points in held for value in points.values()), default=GIB)
    memory.set_ylim(0, 1.1 * highest / GIB)
    memory.set_xlabel("step")
    for axes in (loss, memory):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BadRequest(f"-o {path}: cannot be written: {error.strerror}") from None


def _text(title: str) -> str:
    return title.replace("$", r"\$")  # a dollar sign would begin a formula


def _curve(axes: Any, points: CurvePoints, label: str, unit: float, **style: str) -> None:
    if points:
        steps = sorted(points)
        axes.plot(steps, [points[step] / unit for step in steps], label=label, **style)


_PAGE = 1000


def curves_of(client: DaemonClient, job: Job) -> Curves:
    """Return the curves of `job` over all its attempts, preceded by the curves of the jobs that it
    resumes.
    """
    curves = Curves()
    for each in history(client, job):
        for attempt in each["attempts"]:
            curves.take(_records(client, int(each["id"]), int(attempt["number"])))
    return curves


def history(client: DaemonClient, job: Job, pages: int | None = None) -> list[Job]:
    """Return `job` and the jobs that it resumes, directly or indirectly, the oldest first.

    A job resumes an older job if its `resume_from` is in the output directory of that job. Only
    `pages` pages of a thousand jobs are searched (None: all).
    """
    chain: list[Job] = [job]
    older = jobs_before(client, int(job["id"]), pages) if _sources(job) else iter(())
    sources = _sources(job)
    for each in older:
        if not sources:
            break
        if each["attempts"] and each["output_dir"] in sources:
            chain.append(each)
            sources = _sources(each)
    return chain[::-1]


def _sources(job: Job) -> frozenset[str]:
    path = job["spec"].get("resume_from")
    return output_dirs_of(path) if isinstance(path, str) else frozenset()


def jobs_before(client: DaemonClient, job_id: int, pages: int | None = None) -> Iterator[Job]:
    """Yield the jobs with a number below `job_id`, the newest first, from at most `pages` pages of
    the daemon's list.
    """
    for _ in count() if pages is None else range(pages):
        page = client.jobs(limit=_PAGE, after=job_id)
        yield from page
        if len(page) < _PAGE:
            return
        job_id = page[-1]["id"]


def _records(client: DaemonClient, job_id: int, attempt: int) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    since = -1
    after = 0
    while after != since:
        since = after
        answer = client.progress(job_id, attempt=attempt, since=since)
        found += answer["records"]
        after = int(answer["next"])
    return found
