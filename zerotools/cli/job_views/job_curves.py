"""Curves of jobs: collected from the reports of their steps, and drawn in the terminal or as a
picture by matplotlib."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import click

from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint, wants_colour
from zerotools.cli.output.text_charts import (
    FEWEST_ROWS,
    ROWS,
    NumberFormat,
    Series,
    SeriesPoints,
    chart_grid,
    step_range,
)
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.join_attempt_curves import CurvePoints, Curves, output_dirs_of

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


@dataclass(frozen=True)
class CurveKind:
    """A kind of curve: its name, its values, and the format of a value.

    The axis begins at `least`, or at the smallest value if this is smaller. A curve is flat if its
    values differ by at most `flat_share` of the largest value. A flat curve is shown as one number.
    """

    name: str
    points: Callable[[Curves], SeriesPoints]
    form: NumberFormat
    least: float | None = None
    flat_share: float = 0.001

    def is_flat(self, points: SeriesPoints) -> bool:
        """Return whether these points of the curve are shown as one number."""
        values = points.values()
        return not values or max(values) - min(values) <= self.flat_share * max(map(abs, values))


KINDS = (
    CurveKind("loss", lambda curves: curves.loss, render.loss),
    CurveKind("loss of evaluations", lambda curves: curves.eval_loss, render.loss),
    CurveKind("margin of rewards", lambda curves: curves.reward_margin, render.loss),
    CurveKind("accuracy of rewards", lambda curves: curves.reward_accuracy, render.loss, 0.0),
    CurveKind("learning rate", lambda curves: curves.lr, "{:.1e}".format, 0.0),
    CurveKind("host memory of rank 0", lambda curves: curves.host_bytes, render.size, 0.0, 0.1),
    CurveKind("GPU memory, peak so far", lambda curves: curves.gpu_bytes, render.size, 0.0, 0.1),
)
LOSS, EVAL_LOSS, *_ = KINDS
OTHER_ROWS = 5
"""Without a terminal, each chart after the first has this number of rows."""


def charts(
    named: NamedCurves, columns: int, *, braille: bool, height: int | None = None
) -> list[str]:
    """Return the titles of the jobs, a line for each job with a loss of NaN, a chart for each kind
    of curve, a line with the steps, and a line for each kind that has only flat curves.

    A kind without values is left out, except the loss. If `height` is set and large enough, there
    are `height` lines: the first chart gets all remaining rows.
    """
    quiet, strong = (
        partial(paint, meaning=each, stream=sys.stdout) for each in ("quiet", "strong")
    )
    named = [(render.shorten(title, columns - 2), curves) for title, curves in named]
    lines = [*_legend(named, braille=braille), *_not_finite(named), ""]
    drawn, flat = {}, []
    for kind in KINDS:
        series = _series(kind, named)
        if not any(each.points for each in series):
            lines += [f"{kind.name}: no values were reported"] if kind is KINDS[0] else []
        elif all(kind.is_flat(each.points) for each in series):
            flat.append(f"{strong(kind.name)}  {_last_values(kind, named)}, unchanged")
        else:
            drawn[kind] = series
    if not drawn:
        return [*lines, *flat]
    steps = step_range([each for series in drawn.values() for each in series])
    label_columns = max(
        len(kind.form(value)) for kind in drawn for value in _edges(kind, drawn[kind])
    )
    rows = _rows(len(drawn), None if height is None else height - len(lines) - len(flat) - 1)
    axis = ""
    for (kind, series), height in zip(drawn.items(), rows, strict=True):
        grid = chart_grid(
            series,
            kind.form,
            columns=columns,
            braille=braille,
            least=kind.least,
            rows=height,
            steps=steps,
            label_columns=label_columns,
        )
        assert grid is not None, kind.name
        lines.append(f"{strong(kind.name)}  {_last_values(kind, named)}")
        lines += grid.lines(series, "│" if braille else "|", quiet)
        axis = grid.axis
    return [*lines, quiet(axis), *flat]


def _series(kind: CurveKind, named: NamedCurves) -> list[Series]:
    return [
        Series(kind.points(curves), MARKS[n % len(MARKS)], _paint(n, len(named)))
        for n, (_, curves) in enumerate(named)
    ]


def _edges(kind: CurveKind, series: Sequence[Series]) -> tuple[float, float]:
    values = [value for each in series for value in each.points.values()]
    return min(values) if kind.least is None else min(kind.least, *values), max(values)


def _last_values(kind: CurveKind, named: NamedCurves) -> str:
    """Return the last value of each job, in the colour of its curve."""
    last = {
        number: kind.form(points[max(points)])
        for number, (_, curves) in enumerate(named)
        if (points := kind.points(curves))
    }
    if len(set(last.values())) == 1:
        return next(iter(last.values()))
    return ", ".join(_paint(number, len(named))(text) for number, text in last.items())


def _rows(count: int, free: int | None) -> list[int]:
    """Return the height of each of `count` charts in rows. Together with one title each, the charts
    fill `free` lines. If `free` is None, the heights are fixed."""
    if free is None:
        return [ROWS, *[OTHER_ROWS] * (count - 1)]
    other = max(FEWEST_ROWS, min(2 * FEWEST_ROWS, (free - count) // (count + 1)))
    return [max(FEWEST_ROWS, free - count - other * (count - 1)), *[other] * (count - 1)]


def _paint(number: int, count: int) -> Callable[[str], str]:
    meaning = "busy" if count == 1 else _COLOURS[number % len(_COLOURS)]
    return partial(paint, meaning=meaning, stream=sys.stdout)


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


def _not_finite(named: NamedCurves) -> Iterator[str]:
    """Yield a line for each job with a loss of NaN or infinity, which no chart shows."""
    for title, curves in named:
        if curves.not_finite:
            first, number = min(curves.not_finite), len(curves.not_finite)
            at = f"step {first}" if number == 1 else f"{number} steps, first at step {first}"
            whose = "" if len(named) == 1 else f"{title}: "
            text = f"{whose}the loss was not a number at {at}"
            for line in render.folded(text, render.terminal_columns(), 2):
                yield paint(line, "bad", sys.stdout)


def check_name(path: Path) -> None:
    """Raise BadRequest if `path` does not have the ending of a picture file."""
    if path.suffix.lower() not in ENDINGS:
        raise BadRequest(f"-o {path}: must end in {' or '.join(ENDINGS)}")


def save(named: Sequence[tuple[str, Curves]], path: Path) -> None:
    """Draw the loss, the learning rate and the memory of each job by step into the picture file
    `path`. The ending of `path` selects the format.

    Raises:
        BadRequest: matplotlib is not installed, or `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise package_not_installed(
            "a picture", "matplotlib", "leave -o out for a chart in the terminal"
        ) from None
    figure: Any = Figure(figsize=(9, 7), layout="constrained")
    loss, rate, memory = figure.subplots(3, 1, sharex=True, height_ratios=(4, 1, 2))
    figure.suptitle(_text(", ".join(title for title, _ in named)))
    for title, curves in named:
        of = f", {_text(title)}" if len(named) > 1 else ""
        _curve(loss, curves.loss, f"loss{of}", 1)
        _curve(loss, curves.eval_loss, f"evaluation{of}", 1, marker="o")
        _curve(rate, curves.lr, f"learning rate{of}", 1)
        _curve(memory, curves.host_bytes, f"host, rank 0{of}", GIB)
        _curve(memory, curves.gpu_bytes, f"GPU, peak so far{of}", GIB)
    loss.set_ylabel("loss")
    rate.set_ylabel("learning rate")
    memory.set_ylabel("memory (GiB)")
    held = (curves for _, each in named for curves in (each.host_bytes, each.gpu_bytes))
    highest = max((value for points in held for value in points.values()), default=GIB)
    memory.set_ylim(0, 1.1 * highest / GIB)
    memory.set_xlabel("step")
    for axes in (loss, rate, memory):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BadRequest(
            f"-o {path}: cannot be written: {error.strerror}; name another file"
        ) from None


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
            curves.add_reports(_records(client, int(each["id"]), int(attempt["number"])))
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
