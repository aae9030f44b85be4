"""Curves of jobs in the terminal, to its size, or as a picture."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from zerotools.cli.output import render
from zerotools.cli.output.braille_chart import FEWEST_ROWS, FRAME, ROWS, Series, SeriesPoints, chart
from zerotools.cli.output.style import paint, wants_colour
from zerotools.cli.plots import picture
from zerotools.jobs.step_curves import Curves

PIPED_COLUMNS = 80
MARKS = "*o+x#@%&"
_COLOURS = ("good", "busy", "warning", "bad", "strong", "quiet")

NamedCurves = Sequence[tuple[str, Curves]]
"""The title of each job, and its curves."""


def plot(named: NamedCurves, output: Path | None) -> None:
    """Draw into `output`, or on stdout, as large as the terminal is."""
    if output is not None:
        picture.save(named, output)
        click.echo(f"drawn: {output}")
        return
    columns = render.terminal_columns(sys.stdout)
    height = None if columns is None else shutil.get_terminal_size().lines - 1
    braille = has_braille(sys.stdout) and (len(named) == 1 or wants_colour(sys.stdout))
    lines = charts(named, columns or PIPED_COLUMNS, braille=braille, height=height)
    render.print_lines(lines)


def has_braille(stream: TextIO) -> bool:
    """Return whether the stream takes characters beyond ASCII."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def charts(
    named: NamedCurves, columns: int, *, braille: bool, height: int | None = None
) -> list[str]:
    """Return lines with the existing curves, and always the loss: the titles of the jobs, then a
    chart for each kind of curve, in `height` lines if that is given and enough."""
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
