"""Divides the screen among its parts, and draws it.

On a narrow screen, the parts are below each other: GPUs, host, jobs, the chosen job, keys. From
`WIDE` columns on, jobs and log are to the left of the chosen job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.cli.job_views.describe_job import Job, meaning_of, shown_state, state_text, title
from zerotools.cli.top.drawing import help_and_log_pages, short_numbers
from zerotools.cli.top.drawing.gpu_rows import ROOMY, gpu_charts, gpu_lines, process_lines
from zerotools.cli.top.drawing.host_rows import host_lines
from zerotools.cli.top.drawing.job_detail_rows import detail_lines, job_page, log_tail
from zerotools.cli.top.drawing.job_rows import ABOVE, BELOW, MARK, JobColumns, job_header, job_line
from zerotools.cli.top.drawing.styled_lines import (
    CURSOR,
    GAP,
    Line,
    cut,
    ends,
    padded,
    plain,
    ruled,
    side_by_side,
    width,
)
from zerotools.cli.top.drawing.view_state import HELP, JOB, LOG, ORDERS, ViewState, passing
from zerotools.cli.top.reading.job_details import LogLines
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.jobs.states import ACTIVE, LATE, STALLED, TERMINAL

LEAST_COLUMNS, LEAST_ROWS = 40, 8
TITLED, HEADED = 27, 30
"""From `TITLED` rows on, a screen always shows the name of the machine. From `HEADED` rows on, it
always shows the names of columns. Smaller screens show them if all jobs have a row.
"""
WIDE = 150
CHARTED, SPARE_FOR_CHARTS = 38, 12
"""The least number of rows of a screen with charts of all GPUs, and of rows that nothing else needs
there.
"""
MOST_PROCESSES = 10
FEWEST_JOBS, DETAILS = 5, 7
"""The chosen job gets more than `DETAILS` rows only if the table of jobs has `FEWEST_JOBS` rows.
GPUs get more than half of the rows only if all jobs have one."""


@dataclass(frozen=True)
class DrawnScreen:
    """A drawn screen: its `lines` from the top, and the positions of the jobs on it.

    `state` is the user's state, with the table scrolled as it is drawn. `jobs` has the number of
    the job in each row. `job_rows` is the number of rows of the table.
    """

    lines: list[Line]
    state: ViewState
    jobs: dict[int, int]
    job_rows: int = 1

    def key_at(self, column: int, row: int) -> str | None:
        """Return textual's name of the key at this position of the last line; None if no key is
        there.
        """
        if row != len(self.lines) - 1:
            return None
        left, found = 0, None
        for text, meaning in self.lines[row]:
            found = text if meaning == "key" else found
            left += width([(text, meaning)])
            if column < left:
                return None if found is None else KEY_NAMES.get(found, found)
        return None


def draw_screen(
    data: ScreenData | None,
    log: LogLines | None,
    state: ViewState,
    columns: int,
    rows: int,
    now: float,
) -> DrawnScreen:
    """Return the whole screen, of at most `columns` columns and `rows` rows. `now` is in seconds
    since 1970.
    """
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        said = f"{columns}x{rows} is too small: {LEAST_COLUMNS}x{LEAST_ROWS} at least; q quits"
        return DrawnScreen([cut([(said, "warning")], columns)], state, {})
    foot = _foot(state, columns)
    if state.page == HELP:
        body = help_and_log_pages.help_lines(columns)[: rows - len(foot)]
        return DrawnScreen(_above(body, foot, rows), state, {})
    if data is None:
        return DrawnScreen(
            _above([[("reading GPUs, host and jobs", "quiet")]], foot, rows), state, {}
        )
    if state.page == LOG and log is not None:
        body = _log_body(log, state, columns, rows - len(foot))
        return DrawnScreen(_above(body, foot, rows), state, {})
    job = next((job for job in data.jobs if job["id"] == state.chosen), None)
    if state.page == JOB and job is not None:
        return DrawnScreen(
            _above(job_page(data, job, columns, rows - len(foot), now), foot, rows), state, {}
        )
    host = host_lines(data, columns, 2 if rows < 45 else 3)
    shared = max(1, len(data.snapshot.gpus)) + 1 + len(state.listed(data.jobs)) + DETAILS
    spare = rows - len(foot) - len(host) - len(_trouble(data, columns, now)) - shared
    lines = [_title(data, columns, now)] if rows >= TITLED or spare >= 1 else []
    headed = rows >= HEADED or spare >= 2
    room = rows - len(lines) - len(host) - len(foot)
    most = min(
        room - FEWEST_JOBS - 3, max(room // 2, room - DETAILS - len(state.listed(data.jobs)))
    )
    lines += gpu_lines(data, columns, max(2, most), headed=headed)
    lines += host
    if columns >= ROOMY and rows >= CHARTED and spare >= SPARE_FOR_CHARTS:
        lines += gpu_charts(data, columns)
    body, drawn, jobs, count = _body(data, state, columns, rows - len(lines) - len(foot), now)
    shown = {row + len(lines): number for row, number in jobs.items()}
    return DrawnScreen(_above(lines + body, foot, rows), drawn, shown, count)


def shown_log(log: LogLines, state: ViewState) -> Sequence[str]:
    """Return the lines of a log that pass the filters of the log page."""
    lines = help_and_log_pages.error_lines(log.lines) if state.errors else log.lines
    passes = passing(state.find)
    return [line for line in lines if passes(line)] if state.find else lines


def _log_body(log: LogLines, state: ViewState, columns: int, rows: int) -> list[Line]:
    lines = shown_log(log, state)
    title, nothing = log.title, "this log is still empty"
    if state.errors:
        title, nothing = f"errors and warnings in the {title}", "this log has no errors or warnings"
    if state.find:
        nothing = f"no line here passes “{plain(state.find)}”; Escape shows all"
    return help_and_log_pages.log_page(title, lines, state.top, columns, rows, nothing)


def _above(body: Sequence[Line], foot: Sequence[Line], rows: int) -> list[Line]:
    blank: Line = []
    missing = rows - len(body) - len(foot)
    return [*body[: rows - len(foot)], *([blank] * missing), *foot]


def _title(data: ScreenData, columns: int, now: float) -> Line:
    """Return the line with the machine, its GPUs and the numbers of jobs. Late and stalled jobs are
    not counted as running. The name of the program is left out if there is no space for it.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    counts = Counter(map(_counted_as, data.jobs))
    more = "+" if data.is_cut else ""
    words = ("running", LATE, STALLED, "waiting", "ended")
    said = ", ".join(f"{counts[word]}{more} {word}" for word in words if counts[word])
    left: Line = [(plain(data.machine), "strong")]
    names = {plain(gpu.name) for gpu in data.snapshot.gpus if gpu.name}
    if count := len(data.snapshot.gpus):
        left.append((f"   {count} × {names.pop()}" if len(names) == 1 else f"   {count} GPUs", ""))
    if said:
        left.append((f"   jobs: {said}", ""))
    name: Line = [("zerotools top  ", "quiet")]
    fits = width([*name, *left]) + GAP + width([(clock, "")]) <= columns
    return ends([*name, *left] if fits else left, [(clock, "quiet")], columns)


def _counted_as(job: Job) -> str:
    state, word = str(job["state"]), shown_state(job)
    if word in (LATE, STALLED):
        return word
    return "running" if state in ACTIVE else "ended" if state in TERMINAL else "waiting"


Body = tuple[list[Line], ViewState, dict[int, int], int]


def _body(data: ScreenData, state: ViewState, columns: int, rows: int, now: float) -> Body:
    """Return the rows of the jobs and of the chosen job, and the number of the job in each row.
    Rows are counted from the first of these rows."""
    listed = state.listed(data.jobs)
    chosen = next((job for job in listed if job["id"] == state.chosen), None)
    above = _trouble(data, columns, now)
    if chosen is None:
        lines, state, jobs, count = _table(data, listed, state, columns, rows - len(above), now)
        used = len(above) + len(lines)
        lines += process_lines(data, columns, min(MOST_PROCESSES, rows - used))
        return [*above, *lines], state, _lower(jobs, len(above)), count
    if columns >= WIDE and rows >= 14:
        return _two_columns(data, listed, chosen, state, columns, rows, now)
    room = rows - len(above) - 1
    details = max(DETAILS, room - len(listed)) if room - FEWEST_JOBS >= DETAILS else room // 2
    details = max(details, room // 2) if rows >= HEADED else details
    table, state, jobs, count = _table(data, listed, state, columns, room + 1 - details, now)
    used = len(above) + len(table)
    lines = detail_lines(data, chosen, columns, rows - used, now)
    return [*above, *table, *lines], state, _lower(jobs, len(above)), count


def _lower(jobs: dict[int, int], by: int) -> dict[int, int]:
    return {row + by: number for row, number in jobs.items()}


def _two_columns(
    data: ScreenData,
    listed: Sequence[Job],
    chosen: Job,
    state: ViewState,
    columns: int,
    rows: int,
    now: float,
) -> Body:
    left_columns = columns * 52 // 100
    right_columns = columns - left_columns - 3
    above = _trouble(data, columns, now)
    rows -= len(above)
    table, state, jobs, count = _table(
        data, listed, state, left_columns, max(FEWEST_JOBS + 1, rows // 2), now
    )
    left = list(table)
    processes = process_lines(data, left_columns, min(MOST_PROCESSES, (rows - len(left)) // 2))
    if processes:
        left += [ruled([("processes on GPUs", "strong")], left_columns), *processes]
    log_rows = rows - len(left) - 1
    if data.chosen is not None and data.chosen.log and log_rows >= 2:
        left.append(ruled([("log", "strong")], left_columns, [("l  all of it", "quiet")]))
        left += log_tail(data.chosen.log, left_columns, log_rows)
    right = detail_lines(data, chosen, right_columns, rows, now, logged=False)
    body = [*above, *side_by_side(left, right, left_columns, rows)]
    return body, state, _lower(jobs, len(above)), count


def _trouble(data: ScreenData, columns: int, now: float) -> list[Line]:
    """Return a line with the reason why the daemon does not answer, and a line with the jobs that
    make no progress. These jobs have a line here because the table may not show them.
    """
    lines: list[Line] = []
    if data.trouble:
        age = f" (jobs as of {short_numbers.ago(data.jobs_age_seconds)})" if data.jobs else ""
        lines = [cut([("jobs  ", "strong"), (plain(data.trouble) + age, "warning")], columns)]
    named: Line = []
    for word in (STALLED, LATE):
        found = [job for job in data.jobs if shown_state(job) == word]
        texts = [state_text(job, now).replace(word, plain(title(job))) for job in found]
        if found:
            named += [(f"{word}  ", "strong"), (f"{', '.join(texts)}   ", meaning_of(word))]
    return [*lines, cut(named, columns)] if named else lines


def _table(
    data: ScreenData, listed: Sequence[Job], state: ViewState, columns: int, rows: int, now: float
) -> tuple[list[Line], ViewState, dict[int, int], int]:
    """Return the table of jobs with its header, in at most `rows` rows."""
    room = max(1, rows - 1)
    if not listed:
        return _nothing_listed(data, state, columns), state, {}, 1
    state = state.scrolled(listed, room)
    part = listed[state.first : state.first + room]
    shown = _part(data, listed, state, len(part))
    widths = JobColumns.of(columns, listed, now, shown)
    lines = [job_header(widths, columns, shown)]
    jobs: dict[int, int] = {}
    above, below = state.first, len(listed) - state.first - len(part)
    for place, job in enumerate(part):
        mark = ABOVE if not place and above else BELOW if place == len(part) - 1 and below else " "
        mark = MARK if job["id"] == state.chosen else mark
        jobs[len(lines)] = job["id"]
        lines.append(job_line(job, widths, columns, now, mark=mark))
    return lines, state, jobs, room


def _part(data: ScreenData, listed: Sequence[Job], state: ViewState, shown: int) -> str:
    if shown == len(listed) and not data.is_cut:
        return ""
    return f"{state.first + 1}-{state.first + shown}/{len(listed)}{'+' if data.is_cut else ''}"


def _nothing_listed(data: ScreenData, state: ViewState, columns: int) -> list[Line]:
    if data.jobs and state.only:
        said = f"none of {len(data.jobs)} jobs has the text “{plain(state.only)}”; Escape shows all"
    elif data.trouble:
        return []
    else:
        said = "no job runs or waits, and none has ended within the last hour"
    return [cut([("jobs  ", "strong"), (said, "quiet")], columns)]


KEY_NAMES = {
    "?": "question_mark",
    "/": "slash",
    "+": "plus",
    "-": "minus",
    "Enter": "enter",
    "End": "end",
    "↑": "up",
    "↓": "down",
    "←": "left",
    "→": "right",
}
"""The text of a key in the last line -> textual's name of the key, if the two differ."""
_QUIT = ("q", "quit")
_JOB_KEYS = (
    *(("?", "help"), ("Enter", "page"), ("l", "log"), ("e", "errors"), ("p", "hold")),
    *(("r", "retry"), ("c", "cancel"), ("/", "filter"), ("s", "sort"), ("+", ""), ("-", "prio")),
    _QUIT,
)
_BACK = ("q", "back")
_PAGE_KEYS = (
    *(*_JOB_KEYS[2:7], ("↑", ""), ("↓", "other job")),
    *(("+", ""), ("-", "prio"), ("?", "help"), _BACK),
)
_LOG_KEYS = (
    *(("↑", ""), ("↓", "scroll"), ("End", "follow"), ("←", ""), ("→", "rank")),
    *(("e", "errors"), ("/", "find"), _BACK),
)
_HELP_KEYS = (_BACK,)


def _foot(state: ViewState, columns: int) -> list[Line]:
    """Return the last lines of the screen: a question, a response, the filter that is being typed,
    or the keys.
    """
    if state.question:
        answers: Line = [("y", "key"), (" yes  ", ""), ("n", "key"), (" no", "")]
        *lines, last = _folded((state.question, "warning"), columns)
        if width(last) + GAP + width(answers) <= columns:
            return [*lines, [*last, ("  ", ""), *answers]]
        return [*lines, last, answers]
    if state.typed:
        name, words = ("find", state.find) if state.page == LOG else ("filter", state.only)
        typing: Line = [(f"{name}: ", "strong"), (plain(words), ""), (" ", CURSOR)]
        return [ends(typing, [("Enter keeps it, Escape shows all", "quiet")], columns)]
    if state.message[0]:
        return _folded(state.message, columns)
    keys = {JOB: _PAGE_KEYS, LOG: _LOG_KEYS, HELP: _HELP_KEYS}.get(state.page, _JOB_KEYS)
    line: Line = []
    pair: Line = []
    key, word = keys[-1]
    end: Line = [(key, "key"), (f" {word}", "quiet")]
    in_use = {"filter": bool(state.only), "find": bool(state.find), "sort": state.order > 0}
    # Keys in use come first.
    for key, word in sorted(keys[:-1], key=lambda each: not in_use.get(each[1])):
        if word == "sort":
            word = f"sort: {ORDERS[state.order][0]}"
        elif word == "filter" and state.only:
            word = f"filter: {plain(state.only)}"
        elif word == "find" and state.find:
            word = f"find: {plain(state.find)}"
        elif word == "errors" and state.errors:
            word = "all"
        part = [*pair, *_key_piece(key, word)]
        if not word:  # for two keys with one word, the second key has it
            pair = part
            continue
        pair = []
        if width(line) + width(part) + width(end) <= columns:
            line += part
    return [padded([*line, *end], columns)]


def _key_piece(key: str, word: str) -> Line:
    return [(key, "key"), (f" {word}  " if word else "", "quiet")]


def _folded(said: tuple[str, str], columns: int) -> list[Line]:
    text, meaning = said
    return [[(part, meaning)] for part in help_and_log_pages.fold(text, columns)][:3]
