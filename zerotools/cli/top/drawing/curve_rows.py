"""Curves of a job: its loss with its evaluations, drawn as a line or a chart."""

from __future__ import annotations

from functools import lru_cache

from zerotools.cli.output import render
from zerotools.cli.output.braille_chart import FRAME, Plotted, Series, plotted
from zerotools.cli.output.sparkline import sparkline
from zerotools.cli.top.drawing import figures
from zerotools.cli.top.drawing.styled_lines import Line, Piece, cut, width
from zerotools.cli.top.reading.long_curve import CurveSeen, CurveShape
from zerotools.cli.top.reading.report_reader import Reported

EVALUATION = "●"
LONGEST, ROOMY = 100, 90
KEPT = 4
"""Charts that are not drawn again while nothing changes."""
LOWEST = 4
"""Rows of the smallest chart."""


def loss_line(reported: Reported, columns: int) -> Line:
    """Return the loss in one line, with the newest evaluation."""
    said: Line = [*_span(reported.loss)]
    if reported.eval_loss.last is not None:
        evaluated = _evaluated(reported.eval_loss)
        said += [("   ", ""), *(evaluated if columns >= ROOMY else evaluated[:-1])]
    room = min(LONGEST, columns - 6 - width(said))
    drawn: Piece = (sparkline(reported.loss.shape.means, room) if room >= 8 else "", "curve")
    return cut([("loss ", "strong"), drawn, (" ", ""), *said], columns)


def eval_line(reported: Reported, columns: int) -> Line:
    """Return the evaluations in one line."""
    curve = reported.eval_loss
    said = [*_span(curve), (f"  least {_loss(curve.least)} at {curve.least_step}", "quiet")]
    room = min(LONGEST, columns - 6 - width(said))
    drawn: Piece = (sparkline(curve.shape.means, room) if room >= 8 else "", "evals")
    return cut([("eval ", "strong"), drawn, (" ", ""), *said], columns)


def speed_line(curve: CurveSeen, columns: int) -> Line:
    """Return tokens per second over the steps, in one line."""
    said: Line = [(f" {figures.thousands(curve.last or 0.0)}", ""), (" tokens/s", "quiet")]
    room = min(LONGEST, columns - 6 - width(said))
    drawn: Piece = (sparkline(curve.shape.means, room) if room >= 8 else "", "curve")
    return cut([("speed ", "strong"), drawn, *said], columns)


def loss_chart(reported: Reported, columns: int, rows: int) -> list[Line]:
    """Return the chart of the loss and its evaluations in `rows` rows, at least `LOWEST` and the
    frame."""
    loss, evals = reported.loss, reported.eval_loss
    title: Line = [("loss ", "strong"), (_loss(loss.last), "curve")]
    if loss.least_step is not None:
        title.append((f"   least {_loss(loss.least)} at step {loss.least_step}", "quiet"))
    if evals.last is not None:
        title += [("   ", ""), *_evaluated(evals)]
    drawn = _loss_rows(loss.shape, evals.shape, columns, rows - FRAME)
    return [cut(title, columns), *drawn] if drawn else []


def speed_chart(curve: CurveSeen, columns: int, rows: int) -> list[Line]:
    """Return the chart of tokens per second over the steps, from 0, in `rows` rows."""
    said = figures.thousands(curve.last or 0.0)
    title: Line = [("speed ", "strong"), (said, "curve"), (" tokens/s", "quiet")]
    drawn = _speed_rows(curve.shape, columns, rows - FRAME)
    return [cut(title, columns), *drawn] if drawn else []


@lru_cache(maxsize=KEPT)
def _loss_rows(loss: CurveShape, evals: CurveShape, columns: int, rows: int) -> list[Line]:
    series = (Series(loss.points), Series(evals.points, is_joined=False))
    return _rows_of(plotted(series, _loss, columns=columns, braille=True, rows=rows))


@lru_cache(maxsize=KEPT)
def _speed_rows(curve: CurveShape, columns: int, rows: int) -> list[Line]:
    form, series = figures.thousands, (Series(curve.points),)
    return _rows_of(plotted(series, form, columns=columns, braille=True, least=0.0, rows=rows))


def _rows_of(grid: Plotted | None) -> list[Line]:
    if grid is None:
        return []
    lines: list[Line] = []
    for label, cells in zip(grid.labels, grid.cells, strict=True):
        line: Line = [(f"{label} ", "quiet"), ("│", "rule")]
        run, meaning = "", ""
        for text, number in cells:
            now = meaning if number is None else ("curve", "evals")[number]
            if now != meaning and run:
                line.append((run, meaning))
                run = ""
            run, meaning = run + (EVALUATION if number == 1 else text), now
        lines.append([*line, (run, meaning)])
    margin = len(grid.labels[0]) + 2
    return [*lines, [(f"{'':{margin}}{grid.steps}", "quiet")]]


def _span(curve: CurveSeen) -> Line:
    return [(f"{_loss(curve.first)} → ", "quiet"), (_loss(curve.last), "")]


def _evaluated(curve: CurveSeen) -> Line:
    return [
        (f"{EVALUATION} ", "evals"),
        ("eval ", "strong"),
        (_loss(curve.last), "evals"),
        (f" at step {curve.last_step}", "quiet"),
    ]


def _loss(value: float | None) -> str:
    return render.UNKNOWN if value is None else render.loss(value)
