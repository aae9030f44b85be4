"""The table of `zerotools queue`, and the lines about the machine above it.

If the table is too wide for a terminal, columns are removed in the order of `GIVING_WAY` until it
fits. The row of a waiting job has the reason in place of step, loss and other figures. For other
jobs, a reason that does not fit into the row is on the line below, cut at the width of the
terminal; `zerotools explain` shows the whole reason.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerotools.cli.job_views.describe_job import (
    Job,
    age,
    is_over,
    is_stalled,
    loss,
    paint_state,
    ranks,
    reason_text,
    remaining_seconds,
    saved_step,
    shown_state,
    state_text,
    steps,
    user_of,
)
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.jobs.states import FAILED
from zerotools.sensors.snapshot import Gpu, Snapshot

USER, PRIORITY, LEFT, WHY = "user", "prio", "left", "why"
LONGEST_NAME = 40
GIVING_WAY: Sequence[tuple[str, int]] = (
    *(("stage", 0), ("name", 24), ("saved", 0), (LEFT, 0), ("name", 16), ("loss", 0)),
    *((PRIORITY, 0), ("step", 0), ("ranks", 0), ("name", 10), (USER, 8), ("state", 16)),
)
"""The columns that become narrower, in this order, with their new largest width (0: left out)."""
FEWEST_WHY = 12
"""A waiting job has its reason on a second line if the line of the job has fewer columns for it."""
HOLDER_NAMES = (24, 16, 12, 10)
"""The widths to which the names of holders of GPUs are cut, in this order, if two lines do not have
space for the whole names.
"""
RIGHT = frozenset(("id", PRIORITY, "age", "stage", "ranks", "step", LEFT, "loss", "saved"))
_FIGURES = ("ranks", "stage", "step", LEFT, "loss", "saved")
_TEXTS: Mapping[str, Callable[[Job], str]] = {
    "id": lambda job: str(job["id"]),
    USER: user_of,
    PRIORITY: lambda job: str(job.get("priority", 0)),
    "name": lambda job: render.clean(job["name"] or render.UNKNOWN),
    "state": lambda job: state_text(job),
    "age": lambda job: age(job),
    "ranks": ranks,
    "stage": lambda job: render.UNKNOWN if job["stage"] is None else str(job["stage"]),
    "step": steps,
    LEFT: lambda job: _left(job),
    "loss": lambda job: loss(job["progress"]),
    "saved": saved_step,
}
"""The columns from left to right, except the reason, which is the last one."""
_GAP = "  "
_CLAUSE = re.compile(r"(?:;|(?<!\d)[:,]) ")
"""The end of a clause. A comma or a colon after a number is inside a list, as in `GPUs 0, 1: job`.
"""


def queue_lines(jobs: Sequence[Job], columns: int | None, *, shows_user: bool = False) -> list[str]:
    """Return the lines of the table of jobs. `columns` is the width of the terminal. If it is None,
    all columns are shown, with whole reasons.

    Owners are shown with `shows_user`, or if the jobs have several owners. The column of priorities
    is shown if a job has a priority other than the default. On a terminal, the time left is shown
    if it is known for a job.
    """
    names = list(_TEXTS)
    if not shows_user and len({job["uid"] for job in jobs}) < 2:
        names.remove(USER)
    if not any(job.get("priority") for job in jobs):
        names.remove(PRIORITY)
    if columns is None or all(remaining_seconds(job) is None for job in jobs):
        names.remove(LEFT)
    rows = [[_TEXTS[name](job) for name in names] for job in jobs]
    reasons = [render.clean(reason_text(job)) for job in jobs]
    widths = _widths(names, rows, columns)
    header = _cells(names, names, widths)
    lines = list[str]()
    has_column = columns is None
    for row, reason, job in zip(rows, reasons, jobs, strict=True):
        cells = _painted(names, _cells(names, row, widths), widths)
        if columns is None:
            lines.append(_GAP.join([*cells, reason]).rstrip())
        else:
            failed = is_stalled(job) or job["state"] == FAILED
            meaning = "bad" if failed else "quiet"
            waits = _has_no_figures(job) and not is_over(job)
            own = sum(width + len(_GAP) for width in widths.values() if width)
            has_column |= bool(reason) and not waits and own + render.width(reason) <= columns
            lines += _row(names, cells, widths, reason, columns, waits=waits, meaning=meaning)
    title = _GAP.join([*header, WHY] if has_column else header).rstrip()
    return [paint(title, "quiet", sys.stdout), *lines]


def _left(job: Job) -> str:
    left = remaining_seconds(job)
    return render.UNKNOWN if left is None else render.age(left)


def _widths(
    names: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None
) -> dict[str, int]:
    """Return the width of each column; 0 for a column that is left out."""
    widths = {
        name: max(render.width(name), *(render.width(row[at]) for row in rows), 0)
        for at, name in enumerate(names)
    }
    widths["name"] = min(widths["name"], LONGEST_NAME)
    for name, most in GIVING_WAY:
        shown = [width for width in widths.values() if width]
        if columns is None or sum(shown) + len(_GAP) * (len(shown) - 1) <= columns:
            break
        if name in widths:
            widths[name] = min(widths[name], most)
    return widths


def _cells(names: Sequence[str], texts: Sequence[str], widths: Mapping[str, int]) -> list[str]:
    """Return the texts of a row, padded to the widths of their columns."""
    found = []
    for name, text in zip(names, texts, strict=True):
        if widths[name]:
            short = render.shorten(text, widths[name])
            blank = " " * (widths[name] - render.width(short))
            found.append(blank + short if name in RIGHT else short + blank)
    return found


def _painted(names: Sequence[str], cells: Sequence[str], widths: Mapping[str, int]) -> list[str]:
    shown = [name for name in names if widths[name]]
    return [
        paint_state(cell, sys.stdout)
        if name == "state"
        else paint(cell, "bad", sys.stdout)
        if name == "loss" and cell.strip() == "nan"
        else cell
        for name, cell in zip(shown, cells, strict=True)
    ]


def _has_no_figures(job: Job) -> bool:
    return job["progress"] is None and job["latest_checkpoint"] is None


def _row(
    names: Sequence[str],
    cells: Sequence[str],
    widths: Mapping[str, int],
    reason: str,
    columns: int,
    *,
    waits: bool,
    meaning: str,
) -> list[str]:
    """Return the line of a job with its reason. If the reason does not fit into this line, it is on
    a second line.

    The reason is painted in the colour of `meaning`.
    """
    shown = [name for name in names if widths[name]]
    kept = len([name for name in shown if name not in _FIGURES]) if waits and reason else len(shown)
    used = sum(widths[name] + len(_GAP) for name in shown[:kept])
    line = _GAP.join(cells[:kept])
    if not reason:
        return [line.rstrip()]
    short = first_clauses(reason, max(1, columns - used))
    if short == reason or (waits and columns - used >= FEWEST_WHY):
        return [f"{line}{_GAP}{paint(short, meaning, sys.stdout)}"]
    below = render.shorten(reason, columns - 4)
    return [line.rstrip(), f"    {paint(below, meaning, sys.stdout)}"]


def first_clauses(text: str, columns: int) -> str:
    """Return the first clauses of a sentence that fit into `columns` columns, and an ellipsis if
    clauses are left out. If they would take less than half of the columns, cut a clause instead."""
    if render.width(text) <= columns:
        return text
    ends = [found.start() for found in _CLAUSE.finditer(text) if found.start() < columns]
    if ends and ends[-1] * 2 >= columns:
        return f"{text[: ends[-1]]}…"
    return render.shorten(text, columns)


def folded(jobs: Sequence[Job]) -> list[Job]:
    """Return `jobs` with one entry for each array of jobs, instead of its members.

    The entry is at the position of the first member. It has the number of the array, and the number
    of members in each state. If only one member is in `jobs`, that job itself is returned.
    """
    counts = Counter(_array(job) for job in jobs)
    found: list[Job] = []
    seen: set[int] = set()
    for job in jobs:
        number = _array(job)
        if number is None or counts[number] == 1:
            found.append(job)
        elif number not in seen:
            seen.add(number)
            found.append(_as_one([each for each in jobs if _array(each) == number], number))
    return found


def _array(job: Job) -> int | None:
    array = job.get("array")
    return None if not array else int(array["id"])


def _as_one(jobs: Sequence[Job], number: int) -> dict[str, Any]:
    first = jobs[0]
    waiting = next((job for job in jobs if job["reason"] and not job["attempts"]), None)
    name = str(first["name"] or "").rpartition("-")[0] or str(first["name"] or "")
    return {
        **first,
        "id": f"@{number}",
        "name": name,
        "state": _counts(jobs),
        "progress": None,
        "phase": None,
        "latest_checkpoint": None,
        "reason": waiting["reason"] if waiting else None,
    }


def _counts(jobs: Sequence[Job]) -> str:
    """Return the number of jobs in each state, as `3 queued, 1 running`."""
    counts = Counter(shown_state(job) for job in jobs)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def machine_lines(
    snapshot: Snapshot, leases: Sequence[Mapping[str, Any]], jobs: Sequence[Job], columns: int
) -> list[str]:
    """Return a line that sums up the machine and its jobs, and below it the GPUs of each job.

    `leases` are the daemon's leases of GPUs, and `jobs` all unfinished jobs. If the first line is
    longer than `columns`, its last parts are left out. The list of GPUs has at most two lines if
    possible: names are shortened before a third line is added.
    """
    host, gpus = snapshot.host, snapshot.gpus
    leased = {lease["gpu_uuid"] for lease in leases}
    parts = [_counts([job for job in jobs if not is_over(job)])]
    if gpus:
        parts.insert(0, f"{sum(gpu.uuid in leased for gpu in gpus)} of {len(gpus)} GPUs in use")
    total = render.size(host.memory_total_bytes)
    parts.append(f"memory {render.gib(host.memory_used_bytes)} of {total}")
    parts += [] if host.cpu_percent is None else [f"CPU {host.cpu_percent:.0f} %"]
    while len(parts) > 1 and render.width("; ".join(parts)) > columns:
        parts.pop()
    lines = [render.shorten("; ".join(filter(None, parts)), columns)]
    if gpus:
        holders = gpu_holders(gpus, leases, jobs)
        lines += _listed("GPUs ", holders, columns)
    return [*lines, ""]


def gpu_holders(
    gpus: Sequence[Gpu], leases: Sequence[Mapping[str, Any]], jobs: Sequence[Job]
) -> dict[str, str]:
    """Return the numbers of the GPUs, such as `0-3`, keyed by their holder. A holder is a job, such
    as `llama`. For GPUs without a job it is `error`, `excluded` or `free`. If several users have
    GPUs, the user is added: `anna/llama`.
    """
    known = {job["id"]: job for job in jobs}
    is_shared = len({lease.get("uid") for lease in leases}) > 1
    names: dict[str, list[str]] = {}
    for lease in leases:
        job = known.get(lease["job_id"])
        name = render.clean(str((job or {}).get("name") or f"job {lease['job_id']}"))
        owner = f"{user_of(job)}/" if is_shared and job is not None else ""
        names.setdefault(lease["gpu_uuid"], []).append(f"{owner}{name}")
    places: dict[str, list[int]] = {}
    for gpu in gpus:
        other = "error" if gpu.error else "excluded" if gpu.excluded else "free"
        places.setdefault(" + ".join(names.get(gpu.uuid or "", [other])), []).append(gpu.index)
    return {who: render.spans(where).replace(", ", ",") for who, where in places.items()}


def _listed(head: str, holders: Mapping[str, str], columns: int) -> list[str]:
    """Return lines with the GPUs of all holders. If two lines are not enough, names are shortened
    by the widths in `HOLDER_NAMES`, as little as the smallest number of lines allows."""
    shown = [_joined(head, holders, columns, longest) for longest in (columns, *HOLDER_NAMES)]
    most = max(2, min(map(len, shown)))
    lines = next(lines for lines in shown if len(lines) <= most)
    return [render.shorten(line, columns) for line in lines]


def _joined(head: str, holders: Mapping[str, str], columns: int, longest: int) -> list[str]:
    texts = [f"{where} {render.shorten(who, longest)}" for who, where in holders.items()]
    lines = [head + texts[0]]
    for text in texts[1:]:
        if render.width(f"{lines[-1]}, {text},") > columns:
            lines[-1] += ","
            lines.append(" " * len(head) + text)
        else:
            lines[-1] += f", {text}"
    return lines
