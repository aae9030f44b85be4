"""Reports the current phase of an attempt, its last step, and the rank that the others wait for
(the straggler).

The supervisor of the attempt writes the phase and the last step into `heartbeats.json` once a
second. Times in this file are monotonic times, because nobody can set that clock. Older supervisors
report only the time of the last step. Ranks can write into the run directory too, so impossible
values are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotoolsd.attempts.last_report import LastReport, last_line
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.durable_files import read_json
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import FILE
from zerotoolsd.supervisor.heartbeats.stall_limits import STEPPING
from zerotoolsd.users.open_as_user import opened_run_directory

_LARGEST = 256 * 1024
_TRIES = 3
_STEPS = 4.0
"""The last step counts as old after this many times the duration of a step, and after at least
this many seconds:
"""
_OLD_SECONDS, _LATE_SECONDS = 5.0, 60.0
"""Seconds after which the last step counts as old, and after which the current step counts as
late.
"""
_LONGEST = 500


@dataclass(frozen=True)
class Clocks:
    """The wall clock and the monotonic clock, in seconds, read at the same moment."""

    monotonic: float = field(default_factory=time.monotonic)
    time: float = field(default_factory=time.time)

    def epoch_of(self, clock: object) -> float | None:
        """Convert the monotonic time `clock` to whole seconds since the epoch; None if invalid."""
        if not isinstance(clock, float) or not 0 <= clock <= self.monotonic + 1:
            return None
        return float(round(self.time - (self.monotonic - clock)))


def time_since_step(
    run_dir: Path, step: Mapping[str, Any] | None, clocks: Clocks
) -> dict[str, Any]:
    """Return the keys of `JobView.phase` that describe the time since the last training step.

    `step` is the report of that step; None if there was none.
    """
    try:
        with opened_run_directory(run_dir) as base:
            found = _read(base / FILE)
    except OSError:
        found = {}
    last = clocks.epoch_of(found.get("last_step_clock"))
    seconds = _seconds(found.get("step_seconds"))
    if step is not None:
        told = _seconds(step.get("time"))
        last = told if last is None else last
        seconds = _seconds(step.get("step_seconds")) if seconds is None else seconds
    age, usual = 0.0 if last is None else clocks.time - last, _STEPS * (seconds or 0.0)
    name = _name(found)
    return {
        "name": name,
        "last_step": last,
        "step_seconds": seconds,
        "step_is_old": age > max(_OLD_SECONDS, usual),
        "late": name in (None, STEPPING) and age > max(_LATE_SECONDS, usual),
        "waits_for": _awaited(found, clocks),
        "deadline_seconds": _seconds(found.get("deadline_seconds")),
        "stalled": found.get("stalled") is not None,
        "stall": _sentence(found.get("stalled")),
    }


def _read(
    path: Path, read: Callable[[Path, int], dict[str, Any] | None] = read_json
) -> dict[str, Any]:
    for _ in range(_TRIES):  # it is being written just now
        try:
            return read(path, _LARGEST) or {}
        except (OSError, ValueError):
            continue
    return {}


def _name(found: Mapping[str, Any]) -> str | None:
    """Return the phase of the rank that the others wait for, or of the first rank, or None."""
    ranks = _ranks(found)
    late = next((rank for rank in ranks if rank["rank"] == found.get("awaited")), None)
    chosen = late or next(iter(ranks), None)
    name = None if chosen is None else chosen.get("phase")
    return name[:_LONGEST] if isinstance(name, str) else None


def _awaited(found: Mapping[str, Any], clocks: Clocks) -> dict[str, Any] | None:
    """Return the rank that the others wait for, as a dict; None if it is unknown.

    The keys are `rank`, `at` (its activity), `since` (the start of that activity), and
    `state` (its process state in the kernel).
    """
    for rank in _ranks(found):
        if rank["rank"] != found.get("awaited"):
            continue
        at, state = rank.get("at"), rank.get("state")
        return {
            "rank": rank["rank"],
            "at": at[:_LONGEST] if isinstance(at, str) else "",
            "since": clocks.epoch_of(rank.get("since_clock")),
            "state": state if isinstance(state, str) and len(state) == 1 else None,
        }
    return None


def _sentence(value: object) -> str | None:
    return one_line(value[:_LONGEST]) if isinstance(value, str) else None


def _ranks(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    ranks = found.get("ranks")
    if not isinstance(ranks, list):
        return []
    return [each for each in ranks if isinstance(each, dict) and type(each.get("rank")) is int]


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        return None
    return float(value)


MOST_RANKS = 1024


def phase_of(
    run_dir: Path, report: LastReport, *, ranks: int, quiet_seconds: float, now: float
) -> dict[str, Any]:
    """Return the value of `JobView.phase` for the attempt in `run_dir`, which has `ranks` ranks.

    Output of a rank and any report, even of a heartbeat or of growing memory, are signs of
    progress. After `quiet_seconds` without such a sign, the attempt counts as quiet (0: never).
    Other files in the directory are not read, because its user could create a million files.
    """
    logs, reported = [], None
    with suppress(OSError), opened_run_directory(run_dir) as base:
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
        **time_since_step(run_dir, report.step, Clocks(time=now)),
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
