"""The phase of a running attempt, its start, and whether the attempt makes progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.attempts.last_report import LastReport, last_line
from zerotoolsd.attempts.progress_report.stall_report import Clocks, standstill
from zerotoolsd.supervisor.plan import PROGRESS
from zerotoolsd.users.open_as_user import opened

MOST_RANKS = 1024


def phase_of(
    run_dir: Path, report: LastReport, *, ranks: int, quiet_seconds: float, now: float
) -> dict[str, Any]:
    """Return `JobView.phase` of the attempt in `run_dir`, which has so many `ranks`.

    Other files in the directory are not read, because its user may make a million of them. Signs of
    progress are output of a rank, any report, a heartbeat too, and growing memory. After
    `quiet_seconds` without a sign it is quiet; 0: never.
    """
    logs, reported = [], None
    with suppress(OSError), opened(run_dir) as base:
        logs = sorted((when, run_dir / path.name) for when, path in _times(base, ranks))
        reported = _modified(base / PROGRESS)
    times = [when for when in (reported, *(when for when, _ in logs)) if when is not None]
    moved = min(max(times), now) if times else None
    quiet = bool(quiet_seconds) and moved is not None and now - moved >= quiet_seconds
    return {
        "doing": report.doing,
        "since": None if report.doing_since is None else min(report.doing_since, now),
        "last_progress": moved,
        "quiet": quiet,
        "last_line": last_line(logs[-1][1]) if logs else None,
        **standstill(run_dir, report.step, Clocks(time=now)),
    }


def _times(run_dir: Path, ranks: int) -> Iterator[tuple[float, Path]]:
    for rank in range(min(ranks, MOST_RANKS)):
        path = run_dir / f"rank-{rank}.log"
        if (when := _modified(path)) is not None:
            yield when, path


def _modified(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
