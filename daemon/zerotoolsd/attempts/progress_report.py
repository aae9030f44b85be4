"""Reports the progress of an attempt: its phase, the last step, the rank that the others wait for
(the straggler), and usual start times.

The supervisor of the attempt writes the phase and the last step into `heartbeats.json` once a
second. Times in this file are monotonic times, because nobody can set that clock. Older supervisors
report only the time of the last step. Ranks can write into the run directory too, so impossible
values are ignored.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import TERMINAL
from zerotoolsd.attempts.last_report import LastReport, last_line
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.queue.rows import ENDED, JobRow
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.durable_files import open_regular, read_json
from zerotoolsd.supervisor.heartbeats.rank_heartbeats import FILE
from zerotoolsd.supervisor.heartbeats.stall_limits import IMPORTING_TORCH, STEPPING
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
    """The calendar time and the monotonic time, in seconds, read at the same moment."""

    monotonic: float = field(default_factory=time.monotonic)
    time: float = field(default_factory=time.time)

    def epoch_of(self, clock: object) -> float | None:
        """Convert the monotonic time `clock` to the calendar time in whole seconds since 1970; None
        if it is not a valid time.
        """
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
    """Return the name of the phase of the rank that the others wait for; if that rank is unknown,
    of the first rank.
    """
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


MOST_JOBS = 50
"""Number of earlier jobs with ended attempts that are searched for similar jobs."""
MOST_ATTEMPTS = 5
"""Largest number of attempts from which a median is computed."""
_HEAD_BYTES = 64 * 1024
_MOST_KEPT = 1000
_MOST_PASTS = 4 * MOST_JOBS
TO_FIRST_STEP = "to the first step"
"""Name for the whole time from the start to the first step."""
_NUMBER = re.compile(r"\d+")


class StartHistory:
    """Computes how long a start usually takes, from attempts of earlier jobs in `store`. The result
    for a job is cached until the job changes its state.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[tuple[int, str], Mapping[str, float]] = {}
        self._pasts: dict[int, _Past | None] = {}

    async def usual_seconds(self, job: JobRow, time_slice: TimeSlice) -> Mapping[str, float]:
        """Return the median duration, in seconds, of each phase of a start and of the whole start,
        keyed by the name of the phase.

        The durations are taken from the newest attempts of similar jobs before this job. A phase
        that none of these attempts had is left out. `time_slice` lets other requests run meanwhile.
        """
        key = job.id, job.state  # earlier jobs may have started since it was queued
        if key not in self._kept:
            found = await self._medians(job, time_slice)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return self._kept[key]

    async def _medians(self, job: JobRow, time_slice: TimeSlice) -> Mapping[str, float]:
        spec, times = job.reading.spec, dict[str, list[float]]()
        if spec is None:
            return {}
        kind, import_kind = _kind(spec), _kind_of_import(spec)
        for number in self._store.jobs_with_ended_attempts(job.id, MOST_JOBS):
            past = await self._past(number, time_slice)
            if past is None:
                continue
            for name, seconds in past.phases:
                if (
                    past.import_kind == import_kind
                    if name == IMPORTING_TORCH
                    else past.kind == kind
                ):
                    times.setdefault(name, []).append(seconds)
        return {name: median(found[:MOST_ATTEMPTS]) for name, found in times.items()}

    async def _past(self, number: int, time_slice: TimeSlice) -> _Past | None:
        """Return the durations of the start phases of the earlier job `number`; None if its record
        is gone or cannot be read.

        The result for an ended job is cached, because it does not change any more.
        """
        if number in self._pasts:
            return self._pasts[number]
        await time_slice.pause_if_due()
        try:
            job = self._store.job(number)
        except KeyError:
            return None
        past = None
        if (spec := job.reading.spec) is not None:
            phases = list[tuple[str, float]]()
            for attempt in reversed(self._store.attempts(number)):
                await time_slice.pause_if_due()
                if attempt.state == ENDED:
                    phases.extend(phase_seconds(Path(attempt.run_dir)).items())
            past = _Past(_kind(spec), _kind_of_import(spec), tuple(phases))
        if job.state in TERMINAL:
            if len(self._pasts) >= _MOST_PASTS:
                self._pasts.clear()
            self._pasts[number] = past
        return past


@dataclass(frozen=True)
class _Past:
    """The durations of the phases of one job's ended attempts, in seconds; the newest attempt
    comes first.
    """

    kind: tuple[object, ...]
    import_kind: tuple[object, ...]
    phases: tuple[tuple[str, float], ...]


def _kind_of_import(spec: JobSpec) -> tuple[object, ...]:
    """Return the properties of a job that determine how long the import of torch takes."""
    return spec.engine, spec.device, spec.python


def _kind(spec: JobSpec) -> tuple[object, ...]:
    """Return the properties of a job that determine how long all other phases of a start take."""
    model = spec.model
    return spec.engine, spec.device, model.path, model.config, spec.data, spec.train.compile


def phase_seconds(run_dir: Path) -> Mapping[str, float]:
    """Return the duration of each phase before the first step of the attempt: phase name to
    seconds.

    If the attempt has done its first step, the time until that step is included under the
    name `TO_FIRST_STEP`.
    """
    events = list(_events(run_dir))
    found: dict[str, float] = {}
    for (begun, name), (ended, _) in pairwise(events):
        if name is not None:
            found[name] = found.get(name, 0.0) + max(0.0, ended - begun)
    if events and events[-1][1] is None:
        found[TO_FIRST_STEP] = sum(found.values())
    return found


def _events(run_dir: Path) -> Iterator[tuple[float, str | None]]:
    """Yield (time, name) at the beginning of each phase before the first step, and at the end (time
    of the first step, None).
    """
    try:
        with (
            opened_run_directory(run_dir) as base,
            os.fdopen(open_regular(base / PROGRESS), "rb") as file,
        ):
            lines = file.read(_HEAD_BYTES).splitlines()
    except (OSError, ValueError):  # removed, or the job has put something else there
        return
    for line in lines:
        message = _message(line)
        when, event, doing = (message.get(key) for key in ("time", "event", "doing"))
        if not isinstance(when, float) or event not in ("phase", "step"):
            continue
        if event == "step":
            yield when, None
            return
        yield when, name_of(doing) if isinstance(doing, str) else None


def _message(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def name_of(doing: str) -> str:
    """Return the name of the activity `doing` with its number replaced: `loading step N` for
    `loading step 40`.
    """
    return _NUMBER.sub("N", doing)
