"""Computes how long the start of a job usually takes, phase by phase, from earlier attempts of
similar jobs.

The times of the phases come from `progress.jsonl` in the run directories of these attempts. Ranks
can write into a run directory too, so lines without a valid time are ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import TERMINAL
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.queue.rows import ENDED, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.attempt_plan import PROGRESS
from zerotoolsd.supervisor.durable_files import open_regular
from zerotoolsd.supervisor.heartbeats.stall_limits import IMPORTING_TORCH
from zerotoolsd.users.open_as_user import opened_run_directory

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
    """The seconds of each phase of one job's ended attempts, the newest attempt first."""

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
    """Return the duration of each phase before the first step of the attempt: name of the phase ->
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
