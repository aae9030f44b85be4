"""The table of jobs: the progress of each job that trains, and the reason of each other job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from zerotools.cli.job_views.describe_job import (
    Job,
    has_old_step,
    is_stalled,
    loss,
    meaning_of,
    outcome,
    progress_of,
    ranks,
    reason_text,
    remaining_seconds,
    shown_state,
    since_step,
    state_text,
    steps,
    user_of,
)
from zerotools.cli.output import render
from zerotools.cli.top.drawing import short_numbers
from zerotools.cli.top.drawing.styled_lines import CURSOR, Line, Piece, filled, meter, padded, plain
from zerotools.jobs.join_attempt_curves import finite_number
from zerotools.jobs.states import ACTIVE, TERMINAL

MARK, ABOVE, BELOW = "▸", "↑", "↓"
MIDDLE_NAME, LONG_NAME = 15, 26
"""The width of names, in columns. Names get `MIDDLE_NAME` before the less important figures get
space, and up to `LONG_NAME` after all figures have space.
"""
IN_STEPS = ("step", "first step")
"""The phases in which a job makes training steps."""
_FIGURES = (("left", 7), ("loss", 8), ("saved", 9), ("tokens/s", 9), ("step", 14), ("ranks", 8))
"""The columns after the bar, with their widths. On a narrow screen, the last of them are left out.
"""


@dataclass(frozen=True)
class JobColumns:
    """The width of each column of the job table. A column of width 0 is left out."""

    id: int
    name: int
    owner: int
    state: int
    bar: int
    figures: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, columns: int, jobs: Sequence[Job], now: float, part: str = "") -> JobColumns:
        """Return the widths for these jobs on a screen of `columns` columns. If columns remain, the
        names get wider first, and then the bars. `part` is a text in the header; see `job_header`.
        """
        number = max([3, *(len(str(job["id"])) for job in jobs)])
        owner = 0 if columns < 66 else min(12, max([5, *(cell_len(user_of(job)) for job in jobs)]))
        bar, percent = 6, 5
        state = max([9, *(len(state_text(job, now)) for job in jobs)])
        room = columns - 2 - number - 1 - (owner and owner + 1) - state - 1 - bar - percent
        longest = 1 + max(
            [8, len(_headed("name", part)), *(cell_len(str(job["name"] or "")) for job in jobs)]
        )
        name = min(
            longest, max(9, min(MIDDLE_NAME, room - sum(width for _, width in _FIGURES[:3])))
        )
        room -= name
        shown: list[tuple[str, int]] = []
        for figure, width in _FIGURES:
            if width > room:
                break
            shown.append((figure, width))
            room -= width
        more = min(room, min(longest, LONG_NAME) - name)
        return cls(number, name + more, owner, state, bar + min(room - more, 14), tuple(shown))


def job_header(widths: JobColumns, columns: int, part: str) -> Line:
    """Return the header of the table. `part` says which jobs are shown; it is empty if all are
    shown.

    `part` follows the word `name`. On a narrow screen, it replaces `name`, or `progress` if only
    that column has space for it.
    """
    name, progress = _headed("name", part), "progress"
    if len(name) >= widths.name:
        name, progress = (part, progress) if len(part) < widths.name else ("name", part)
    owner = f"{filled('owner', widths.owner)} " if widths.owner else ""
    head = f"  {'job':>{widths.id}} {filled(name, widths.name)}{owner}{'state':<{widths.state}} "
    head += filled(progress, widths.bar + 5)
    head += "".join(f"{figure:>{width}}" for figure, width in widths.figures)
    return padded([(head, "title")], columns)


def _headed(word: str, part: str) -> str:
    return f"{word} {part}" if part else word


def job_line(job: Job, widths: JobColumns, columns: int, now: float, *, mark: str) -> Line:
    """Return the row of one job. `mark` is written before it; the chosen job has the mark
    `MARK`.
    """
    chosen = mark == MARK
    owner = f"{filled(plain(user_of(job)), widths.owner)} " if widths.owner else ""
    line: Line = [
        (f"{mark} ", "strong" if chosen else "quiet"),
        (f"{job['id']:>{widths.id}} ", "strong"),
        (filled(plain(job["name"] or ""), widths.name - 1) + " ", ""),
        (owner, "quiet"),
        (filled(state_text(job, now), widths.state) + " ", meaning_of(shown_state(job))),
    ]
    done, total = progress_of(job)
    if job["state"] not in ACTIVE or not total or is_stalled(job):
        line.append(
            (reason_of(job, now), "bad" if job["state"] == "failed" or is_stalled(job) else "quiet")
        )
    else:
        line += meter(done / total, widths.bar, "late" if has_old_step(job) else "busy")
        line.append((f" {100 * done // total:>3}%", ""))
        line += [_figure(job, name, width, now) for name, width in widths.figures]
    line = padded(line, columns)
    return [(text, f"{CURSOR}{meaning}") for text, meaning in line] if chosen else line


def reason_of(job: Job, now: float) -> str:
    """Return why the job waits, the phase of a running job, or how the job ended."""
    if job["state"] in TERMINAL:
        return plain(job["reason"] or outcome(job)).removeprefix(f"{job['state']} ")
    return plain(reason_text(job, now)) or phase_words(job, now)


def phase_words(job: Job, now: float) -> str:
    """Return the phase of the ranks and the time since their last step; empty if the ranks do not
    report it.
    """
    name = (job.get("phase") or {}).get("name")
    if not name:
        return ""
    doing = "trains" if name in IN_STEPS else plain(name)
    since = since_step(job, now)
    return f"{doing}, the last step {since} ago" if since else doing


def _figure(job: Job, name: str, width: int, now: float) -> Piece:
    text, meaning = _text_of(job, name, now)
    return filled(text, width, right=True), meaning


def _text_of(job: Job, name: str, now: float) -> Piece:
    record = job["progress"] or {}
    match name:
        case "left":
            left = remaining_seconds(job)
            return short_numbers.brief(left), "" if left is not None else "quiet"
        case "loss":
            text = loss(record)
            return text, "bad" if text == "nan" else ""
        case "saved":
            return saved_step(job)
        case "tokens/s":
            speed = finite_number(record.get("tokens_per_second"))
            return ("-", "quiet") if speed is None else (short_numbers.thousands(speed), "")
        case "step":
            return steps(job), "quiet"
    return ranks(job), "quiet"


def saved_step(job: Job) -> Piece:
    """Return `40 ✓` if the newest checkpoint is verified, and `40 ?` if it is not. Its directory is
    not read, because the file system may hang.
    """
    found = job["latest_checkpoint"] or {}
    step = found.get("step")
    if type(step) is not int or not 0 <= step < 2**63:
        return render.UNKNOWN, "quiet"
    if found.get("verified"):
        return f"{step} ✓", "good"
    return (f"{step} ?", "warning") if found.get("not_verified") else (str(step), "")
