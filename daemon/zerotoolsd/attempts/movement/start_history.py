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
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.accounts.rights import opened
from zerotoolsd.queue.rows import ENDED, JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.heartbeats.rank_phases import IMPORTING_TORCH
from zerotoolsd.supervisor.plan import PROGRESS

MOST_JOBS = 50
"""Number of earlier jobs that are searched."""
MOST_ATTEMPTS = 5
"""Attempts of similar jobs that the median is of."""
_HEAD_BYTES = 64 * 1024
_MOST_KEPT = 1000
TO_FIRST_STEP = "to the first step"
"""Stands for all phases of a start."""
_NUMBER = re.compile(r"\d+")


class StartHistory:
    """Looks into the attempts of earlier jobs in `store`, once for each phase of a job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[tuple[int, str], float | None] = {}

    def usual_seconds(self, job: JobRow, doing: str | None) -> float | None:
        """Return the median time of this phase in the newest attempts of similar jobs that came
        before this job; None if there are none. Without `doing`, of all phases up to the first
        step."""
        name = TO_FIRST_STEP if doing is None else _name_of(doing)
        if (job.id, name) not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = list(islice(self._times(job, name), MOST_ATTEMPTS))
            self._kept[job.id, name] = median(found) if found else None
        return self._kept[job.id, name]

    def _times(self, job: JobRow, name: str) -> Iterator[float]:
        spec = job.reading.spec
        if spec is None:
            return
        for other in self._store.jobs(limit=MOST_JOBS, after=job.id):
            theirs = other.reading.spec
            if theirs is None or _kind(theirs, name) != _kind(spec, name):
                continue
            for attempt in reversed(self._store.attempts(other.id)):
                if attempt.state == ENDED:
                    times = phase_seconds(Path(attempt.run_dir))
                    if name in times:
                        yield times[name]


def _kind(spec: JobSpec, name: str) -> tuple[object, ...]:
    """Return the properties that two jobs share if this phase takes about the same time."""
    if name == IMPORTING_TORCH:
        return spec.engine, spec.device, spec.python
    model = spec.model
    return spec.engine, spec.device, model.path, model.config, spec.data, spec.train.compile


def phase_seconds(run_dir: Path) -> Mapping[str, float]:
    """Return how long each phase of an attempt took up to its first step, by its name; if it came
    to that step, also how long all of them took."""
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
        yield when, _name_of(doing) if isinstance(doing, str) else None


def _message(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _name_of(doing: str) -> str:
    """Return `loading step N` for `loading step 40`."""
    return _NUMBER.sub("N", doing)
