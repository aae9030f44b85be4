"""How long the phases before the first step, and all of them together, usually take on this
machine, by earlier attempts.

progress.jsonl of an attempt:  importing torch  10.0     its phases:  importing torch      4 s
                               reading the data 14.0                  reading the data     2 s
                               loading the ...  16.0                  loading the weights  30 s
                               step 1           46.0
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

from zerotools.jobs.states import TERMINAL
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.time_slice import TimeSlice
from zerotoolsd.queue.rows import ENDED, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.heartbeats.rank_phases import IMPORTING_TORCH
from zerotoolsd.supervisor.plan import PROGRESS
from zerotoolsd.users.open_as_user import opened

MOST_JOBS = 50
"""Number of earlier jobs with ended attempts to search."""
MOST_ATTEMPTS = 5
"""Attempts of similar jobs that the median is of."""
_HEAD_BYTES = 64 * 1024
_MOST_KEPT = 1000
_MOST_PASTS = 4 * MOST_JOBS
TO_FIRST_STEP = "to the first step"
"""Stands for all phases of a start."""
_NUMBER = re.compile(r"\d+")


class StartHistory:
    """Looks into the attempts of earlier jobs in `store`, once for each state of a job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[tuple[int, str], Mapping[str, float]] = {}
        self._pasts: dict[int, _Past | None] = {}

    async def usual_seconds(self, job: JobRow, time_slice: TimeSlice) -> Mapping[str, float]:
        """Return the median time of each phase, and of all up to the first step, by `name_of`.

        It is the median of the newest attempts of similar jobs that came before this job. A phase
        that none of them had is left out.
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
        """Return the starts of an earlier job, or None if its record is gone or cannot be read.

        Those of an ended job are kept, since they do not change.
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
    """The phases of the ended attempts of one job, the newest attempt first, with their seconds."""

    kind: tuple[object, ...]
    import_kind: tuple[object, ...]
    phases: tuple[tuple[str, float], ...]


def _kind_of_import(spec: JobSpec) -> tuple[object, ...]:
    """Return the properties that two jobs share if torch is imported in about the same time."""
    return spec.engine, spec.device, spec.python


def _kind(spec: JobSpec) -> tuple[object, ...]:
    """Return the properties that two jobs share if the other phases take about the same time."""
    model = spec.model
    return spec.engine, spec.device, model.path, model.config, spec.data, spec.train.compile


def phase_seconds(run_dir: Path) -> Mapping[str, float]:
    """Return the duration of each phase of an attempt before its first step, by its name; if it
    came to that step, also how long all of them took."""
    events = list(_events(run_dir))
    found: dict[str, float] = {}
    for (begun, name), (ended, _) in pairwise(events):
        if name is not None:
            found[name] = found.get(name, 0.0) + max(0.0, ended - begun)
    if events and events[-1][1] is None:
        found[TO_FIRST_STEP] = sum(found.values())
    return found


def _events(run_dir: Path) -> Iterator[tuple[float, str | None]]:
    """Yield time and name of each phase, up to the first step, which has no name."""
    try:
        with opened(run_dir) as base, os.fdopen(open_regular(base / PROGRESS), "rb") as file:
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
    """Return `loading step N` for `loading step 40`."""
    return _NUMBER.sub("N", doing)
