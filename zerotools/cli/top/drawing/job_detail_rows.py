"""Makes the rows of the chosen job: phase, speed, checkpoints, curves (as a line or a chart),
log.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from zerotools.cli.job_views.describe_job import (
    Job,
    checkpoint_path,
    has_no_heartbeat,
    has_old_step,
    is_stalled,
    outcome,
    plan,
    progress_of,
    remaining_seconds,
    shown_state,
    state_text,
    title,
    user_of,
    verification,
)
from zerotools.cli.job_views.job_curves import EVAL_LOSS, LOSS
from zerotools.cli.output import render
from zerotools.cli.output.text_charts import (
    FRAME,
    ChartGrid,
    NumberFormat,
    Series,
    chart_grid,
    sparkline,
)
from zerotools.cli.top.drawing import help_and_log_pages, short_numbers
from zerotools.cli.top.drawing.job_rows import reason_of
from zerotools.cli.top.drawing.styled_lines import (
    Line,
    Piece,
    cut,
    flowing,
    meter,
    padded,
    plain,
    ruled,
    width,
)
from zerotools.cli.top.reading.job_details import JobDetails, KeptCheckpoint
from zerotools.cli.top.reading.job_reports import CurveShape, CurveSummary, JobReports
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.jobs.join_attempt_curves import finite_number
from zerotools.jobs.states import ACTIVE, TERMINAL

FACT_COLUMNS, MOST_FOLDED, MOST_ATTEMPTS = 11, 6, 3
"""On the page of a job: the columns for the name of a fact, the maximum number of lines of a fact,
and the maximum number of attempts.
"""
DETAIL_ROWS = 8
CHART_FROM = 13
"""The loss is drawn as a chart if at least this number of rows is free."""


def detail_lines(
    data: ScreenData,
    job: Job,
    columns: int,
    rows: int,
    now: float,
    *,
    logged: bool = True,
    reason: bool = True,
) -> list[Line]:
    """Return the details of the job in at most `rows` rows. With `logged`, the end of the job's log
    is included, and with `reason` why it waits, or how it ended.
    """
    found = data.chosen if data.chosen and data.chosen.job_id == job["id"] else None
    standing = _describe_state(job, data, now)
    most = max(columns // 3, columns - 12 - len(" · ".join(standing)))
    name = render.shorten(plain(title(job)), most)
    while len(standing) > 1 and len(" · ".join(standing)) + render.width(name) > columns - 12:
        standing.pop()
    lines = [ruled([(name, "strong")], columns, [(" · ".join(standing), "quiet")])]
    doing = _doing(job, now, reason=reason)
    lines += flowing(doing, columns, 1 if rows < CHART_FROM else 2)
    lines += flowing(_speed(job), columns, 1 if rows < CHART_FROM else 2)
    if found is not None:
        lines += _rest(found, columns, rows - len(lines), now, logged=logged)
    return lines[:rows]


def job_page(data: ScreenData, job: Job, columns: int, rows: int, now: float) -> list[Line]:
    """Return the page of one job: its details with the whole reason, its paths and times, and its
    attempts.
    """
    why = reason_of(job, now)
    is_long = width([(why, "")]) > columns and not job.get("masked")  # else among the details
    facts: list[tuple[str, str]] = (
        []
        if job.get("masked")
        else [
            ("why", why if is_long else ""),
            ("output", str(job["output_dir"])),
            ("saved", checkpoint_path(job)),
            ("verified", verification(job)),
        ]
    )
    times = [("queued", job["created"]), ("started", job["started"]), ("ended", job["ended"])]
    facts.append(("times", ", ".join(f"{name} {render.moment(at)}" for name, at in times if at)))
    ended = [each for each in job["attempts"] if each["cause"]]
    facts += [(f"attempt {each['number']}", str(each["cause"])) for each in ended[-MOST_ATTEMPTS:]]
    lines: list[Line] = []
    for name, text in facts:
        words = textwrap.wrap(plain(text), columns - FACT_COLUMNS)
        folded = [
            part for each in words for part in help_and_log_pages.fold(each, columns - FACT_COLUMNS)
        ]
        for number, part in enumerate(folded[:MOST_FOLDED]):
            head = "" if number else name
            lines.append([(f"{head:<{FACT_COLUMNS}}", "strong"), (part, "")])
    progress = _progress(job, columns)
    left = rows - len(lines) - len(progress)
    details = detail_lines(data, job, columns, max(DETAIL_ROWS, left), now, reason=not is_long)
    return [details[0], *progress, *lines, *details[1:]][:rows]


def _progress(job: Job, columns: int) -> list[Line]:
    """Return the row of the steps done and the time left; empty if the job does not train."""
    done, total = progress_of(job)
    if job["state"] not in ACTIVE or not total:
        return []
    said: Line = [(f" {100 * done // total}%  ", "strong"), (f"step {done:,} of {total:,}", "")]
    if (left := remaining_seconds(job)) is not None:
        said += [("   ", ""), (short_numbers.brief(left), "strong"), (" left", "quiet")]
    bar = meter(done / total, min(LONGEST_BAR, columns - FACT_COLUMNS - width(said)), "busy")
    return [cut([(f"{'progress':<{FACT_COLUMNS}}", "strong"), *bar, *said], columns)]


def _rest(found: JobDetails, columns: int, rows: int, now: float, *, logged: bool) -> list[Line]:
    """Return the rows of checkpoints, curves and log, at most `rows` rows together."""
    reported = found.reported
    lines: list[Line] = []
    if found.trouble:
        return [cut([(plain(found.trouble), "warning")], columns)]
    tall = rows >= CHART_FROM - 3
    count = 1 if not tall else max(1, min(len(found.checkpoints), rows // 6))
    lines += checkpoint_lines(found.checkpoints, columns, count, now)
    left = rows - len(lines)
    if reported.loss.shape.means:
        free = left if not logged else max(left * 2 // 3, left - len(found.log))
        if tall:
            lines += _charts(reported, columns, free)
        else:
            lines.append(loss_line(reported, columns))
            if len(reported.eval_loss.shape.means) > 1 and left >= 5:
                lines.append(eval_line(reported, columns))
            if reported.speed.last is not None and rows - len(lines) > len(found.log):
                lines.append(speed_line(reported.speed, columns))
    left = rows - len(lines)
    return lines + (log_tail(found.log, columns, left) if logged else [])


def _charts(reported: JobReports, columns: int, rows: int) -> list[Line]:
    """Return a chart of the loss, and below it charts of speed, gradient norm and learning rate.
    Without space for these charts, one line shows the speed. The result has `rows` rows, but fewer
    if the loss is flat."""
    least = LOWEST + FRAME
    others = [
        (kind, curve)
        for kind, curve in (
            (SPEED, reported.speed),
            (NORM, reported.grad_norm),
            (RATE, reported.rate),
        )
        if curve.last is not None and not kind.is_flat(curve.shape)
    ]
    if rows < CHARTED or not others:
        speed = [] if reported.speed.last is None else [speed_line(reported.speed, columns)]
        return [*loss_chart(reported, columns, max(least, rows - len(speed))), *speed]
    below = max(least, rows // 3)
    lines = loss_chart(reported, columns, rows - below)
    count = min(len(others), max(1, (columns + len(BETWEEN)) // (SMALLEST + len(BETWEEN))))
    wide = (columns - (count - 1) * len(BETWEEN)) // count
    blocks = [curve_chart(kind, curve, wide, below) for kind, curve in others[:count]]
    for row in range(below):
        pieces = [piece for block in blocks for piece in (*padded(block[row], wide), (BETWEEN, ""))]
        lines.append(pieces[:-1])
    return lines


def log_tail(log: Sequence[str], columns: int, rows: int) -> list[Line]:
    """Return the last lines of a log."""
    tail = log[-rows:] if rows > 0 else ()
    return [
        cut([(plain(text), help_and_log_pages.log_meaning(text) or "quiet")], columns)
        for text in tail
    ]


def _describe_state(job: Job, data: ScreenData, now: float) -> list[str]:
    """Return the state of the job in parts, the most important first: `running 3h12m`, `GPU 0-3`,
    `attempt 2`.
    """
    state = shown_state(job)
    since = job["ended"] or (job["started"] if job["state"] in ACTIVE else job["created"])
    words = [state if since is None else f"{state} {short_numbers.brief(now - since)}"]
    if (timed := state_text(job, now)) != state:
        words = [timed]
    if job["state"] in TERMINAL and since is not None:
        words = [f"{state} {short_numbers.ago(now - since)}"]
    if places := _gpus(job, data):
        words.append(places)
    if len(job["attempts"]) > 1:
        words.append(f"attempt {job['attempts'][-1]['number']}")
    if job["priority"]:
        words.append(f"priority {job['priority']:+d}")
    words.append(user_of(job))
    return words


def _gpus(job: Job, data: ScreenData) -> str:
    """Return the numbers of the GPUs of the newest attempt, as `GPU 0-3`. The text is empty if the
    attempt has no GPUs.
    """
    if job["state"] not in ACTIVE or not job["attempt"]:
        return ""
    index = {gpu.uuid: gpu.index for gpu in data.snapshot.gpus}
    found = [index[uuid] for uuid in job["attempt"]["gpu_uuids"] if uuid in index]
    return f"GPU {short_numbers.in_ranges(found)}" if found else ""


def _doing(job: Job, now: float, *, reason: bool) -> list[tuple[int, Line]]:
    """Return the phase of the job, why it waits, or how it ended, as parts for `flowing`."""
    if job["state"] in TERMINAL:
        return [(0, [(plain(outcome(job)), "bad" if job["state"] == "failed" else "")])]
    said = reason_of(job, now) if reason else ""
    phase = job.get("phase") or {}
    if reason and not said and has_no_heartbeat(job):
        said = "a program that does not report its phase"
    bad = phase.get("stalled") or phase.get("quiet") or has_old_step(job)
    parts: list[tuple[int, Line]] = [(0, [(said, "warning" if bad else "")])] if said else []
    # The file of another user's job is not visible.
    return parts if job.get("masked") else [*parts, (1, [(plan(job), "quiet")])]


def _speed(job: Job) -> list[tuple[int, Line]]:
    """Return the numbers of the last step, such as tokens per second, the most important first.

    The result is the parts that `flowing` takes.
    """
    record = dict(job["progress"] or {})
    if is_stalled(job) or has_old_step(job):  # the speed of its last steps is no more
        record |= dict.fromkeys(("tokens_per_second", "mfu", "step_seconds"))
    forms = (
        (0, "tokens_per_second", "{:,.0f} tokens/s", 1.0),
        (1, "mfu", "MFU {:.1f} %", 100.0),
        (2, "step_seconds", "{:.3g} s/step", 1.0),
        (3, "skipped_steps", "{:.0f} skipped", 1.0),
        (4, "grad_norm", "grad {:.3g}", 1.0),
        (5, "lr", "lr {:.1e}", 1.0),
        (6, "loss_scale", "scale {:g}", 1.0),
    )
    parts: list[tuple[int, Line]] = []
    for order, name, form, factor in forms:
        value = finite_number(record.get(name))
        if value is not None and (value or name != "skipped_steps"):
            parts.append((order, [(form.format(value * factor), "strong" if order < 2 else "")]))
    attempt = job["attempt"] or {}
    for name, key in (("GPU", "peak_gpu_bytes"), ("host", "peak_host_bytes")):
        if (held := finite_number(attempt.get(key))) is not None:
            parts.append((7, [(f"{name} peak ", "quiet"), (render.size(held), "")]))
    return parts


def checkpoint_lines(
    kept: Sequence[KeptCheckpoint], columns: int, rows: int, now: float
) -> list[Line]:
    """Return the newest checkpoints, one per row."""
    if not kept:
        return [[("saved ", "strong"), ("nothing yet", "quiet")]] if rows else []
    digits = max(len(str(each.reported.step)) for each in kept[:rows] or kept)
    lines = [_checkpoint(each, digits, now) for each in kept[:rows]]
    for number, line in enumerate(lines):
        line.insert(0, ("saved ", "strong") if not number else ("      ", ""))
    if (more := len(kept) - len(lines)) > 0:
        lines[-1].append((f"   and {more} older", "quiet"))
    return [cut(line, columns) for line in lines]


def _checkpoint(each: KeptCheckpoint, digits: int, now: float) -> Line:
    said = each.reported
    line: Line = [(f"step {said.step:>{digits}} ", "")]
    if each.seen is not None and each.seen.is_thinned:
        line.append(("weights alone (thinned)", "warning"))
    elif said.verified:
        line.append(("✓ verified", "good"))
    elif said.not_verified:
        line.append((f"? not verified: {plain(said.not_verified)}", "warning"))
    else:
        line.append(("no report about it", "quiet"))
    if each.time is not None:
        line.append((f"  {short_numbers.ago(now - each.time)}", ""))
    if said.size_bytes is not None and said.seconds is not None:
        line.append(
            (f"  {render.size(said.size_bytes)} in {short_numbers.brief(said.seconds)}", "quiet")
        )
    return line


EVALUATION = "●"
LONGEST, ROOMY = 100, 90
KEPT = 8
"""The number of drawn charts that are cached. A chart is drawn again if its values change."""
LOWEST = 4
"""A chart has at least this number of rows."""
CHARTED = 2 * (LOWEST + FRAME) + 4
"""The least number of rows for two charts, one above the other."""
SMALLEST, BETWEEN, LONGEST_BAR = 36, "   ", 40
"""Charts next to each other have at least `SMALLEST` columns, with `BETWEEN` between them. The bar
of the progress has at most `LONGEST_BAR` columns.
"""


@dataclass(frozen=True)
class SmallChart:
    """A chart below the chart of the loss: its name, the format of a value, and the unit. The axis
    begins at 0. The chart is not drawn if the averages of all parts of the curve differ by at most
    `flat_share` of the largest average."""

    name: str
    form: NumberFormat
    unit: str = ""
    flat_share: float = 0.001

    def is_flat(self, curve: CurveShape) -> bool:
        """Return whether the chart of this curve is not drawn."""
        means = curve.means
        return not means or max(means) - min(means) <= self.flat_share * max(means)


SPEED = SmallChart("speed", short_numbers.thousands, " tokens/s", flat_share=0.1)
NORM = SmallChart("gradient norm", "{:.3g}".format)
RATE = SmallChart("learning rate", "{:.1e}".format)


def loss_line(reported: JobReports, columns: int) -> Line:
    """Return the loss as a sparkline, with the newest evaluation."""
    said: Line = [*_span(reported.loss)]
    if reported.eval_loss.last is not None:
        evaluated = _evaluated(reported.eval_loss)
        said += [("   ", ""), *(evaluated if columns >= ROOMY else evaluated[:-1])]
    room = min(LONGEST, columns - 6 - width(said))
    drawn: Piece = (sparkline(reported.loss.shape.means, room) if room >= 8 else "", "curve")
    return cut([("loss ", "strong"), drawn, (" ", ""), *said], columns)


def eval_line(reported: JobReports, columns: int) -> Line:
    """Return the loss of evaluations as a sparkline."""
    curve = reported.eval_loss
    said = [*_span(curve), (f"  lowest {_loss(curve.least)} at {curve.least_step}", "quiet")]
    room = min(LONGEST, columns - 6 - width(said))
    drawn: Piece = (sparkline(curve.shape.means, room) if room >= 8 else "", "evals")
    return cut([("eval ", "strong"), drawn, (" ", ""), *said], columns)


def speed_line(curve: CurveSummary, columns: int) -> Line:
    """Return the tokens per second as a sparkline. If all its marks are the same, return only the
    numbers."""
    form, means = short_numbers.thousands, curve.shape.means or (0.0,)
    said: Line = [(form(curve.last or 0.0), ""), (" tokens/s", "quiet")]
    room = min(LONGEST, columns - 7 - width(said))
    # From 0 on: 1 % more tokens per second must not look like a multiple.
    drawn = sparkline(means, room, (0.0, max(means))) if room >= 8 else ""
    if len(set(drawn)) > 1:
        said.insert(0, (f"{drawn} ", "curve"))
    elif form(min(means)) != form(max(means)):
        said.append((f", on average {form(min(means))} to {form(max(means))}", "quiet"))
    return cut([("speed ", "strong"), *said], columns)


def loss_chart(reported: JobReports, columns: int, rows: int) -> list[Line]:
    """Return a chart of the loss and of evaluations in `rows` rows, which include a row for the
    title and a row for the steps. At least `LOWEST` rows are drawn between these two. If all curves
    are flat, return only the title.
    """
    loss, evals = reported.loss, reported.eval_loss
    is_flat = LOSS.is_flat(loss.shape.points) and EVAL_LOSS.is_flat(evals.shape.points)
    title: Line = [("loss ", "strong"), (_loss(loss.last), "curve")]
    if is_flat:
        title.append((", unchanged" if len(loss.shape.points) > 1 else "", "quiet"))
    elif loss.least_step is not None:
        title.append((f"   lowest {_loss(loss.least)} at step {loss.least_step}", "quiet"))
    if evals.last is not None:
        title += [("   ", ""), *_evaluated(evals)]
    if is_flat:
        return [cut(title, columns)] if loss.shape.points else []
    drawn = _loss_rows(loss.shape, evals.shape, columns, rows - FRAME)
    return [cut(title, columns), *drawn] if drawn else []


def curve_chart(kind: SmallChart, curve: CurveSummary, columns: int, rows: int) -> list[Line]:
    """Return a chart of the curve in `rows` rows, with an axis that begins at 0."""
    said = kind.form(curve.last or 0.0)
    title: Line = [(f"{kind.name} ", "strong"), (said, "curve"), (kind.unit, "quiet")]
    drawn = _curve_rows(kind, curve.shape, columns, rows - FRAME)
    return [cut(title, columns), *drawn] if drawn else []


@lru_cache(maxsize=KEPT)
def _loss_rows(loss: CurveShape, evals: CurveShape, columns: int, rows: int) -> list[Line]:
    series = (Series(loss.points), Series(evals.points, is_joined=False))
    return _rows_of(chart_grid(series, _loss, columns=columns, braille=True, rows=rows))


@lru_cache(maxsize=KEPT)
def _curve_rows(kind: SmallChart, curve: CurveShape, columns: int, rows: int) -> list[Line]:
    series = (Series(curve.points),)
    return _rows_of(
        chart_grid(series, kind.form, columns=columns, braille=True, least=0.0, rows=rows)
    )


def _rows_of(grid: ChartGrid | None) -> list[Line]:
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


def _span(curve: CurveSummary) -> Line:
    return [(f"{_loss(curve.first)} → ", "quiet"), (_loss(curve.last), "")]


def _evaluated(curve: CurveSummary) -> Line:
    return [
        (f"{EVALUATION} ", "evals"),
        ("eval ", "strong"),
        (_loss(curve.last), "evals"),
        (f" at step {curve.last_step}", "quiet"),
    ]


def _loss(value: float | None) -> str:
    return render.UNKNOWN if value is None else render.loss(value)
