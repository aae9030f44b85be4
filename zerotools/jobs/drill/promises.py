"""The guarantees of zerotools, and whether they held in a test.

The evidence: the daemon's responses, the logs of the toy programs, and the processes of the
machine.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.drill.notes import NotedRun
from zerotools.jobs.drill.own_processes import describe, own_processes
from zerotools.jobs.drill.toy_queue import ToyJob

GONE_SECONDS = 5.0
"""The time that an ending process may take."""
ONCE = "each acknowledged job is in the queue once"
ENDS = "each job ended as it should"
ALONE = "no two attempts of a job ran at the same time"
NEWEST = "no step ran again that a checkpoint had"
WHOLE = "no saved step was lost"
OVER = "nothing ran again after it was done"
DAEMON = "the daemon ended only when it was killed"
NOTHING_LEFT = "no process is left"


@dataclass
class Promise:
    """One guarantee, and the sentences on its violations."""

    text: str
    broken: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """True if it was never violated."""
        return not self.broken


def of_queue(jobs: Sequence[ToyJob], listed: Sequence[Mapping[str, Any]]) -> Promise:
    """Check that each acknowledged job exists under its number, and no other has its name."""
    promise = Promise(ONCE)
    names = Counter(str(each["name"]) for each in listed)
    numbers = {int(each["id"]): str(each["name"]) for each in listed}
    for job in jobs:
        if job.number is not None and numbers.get(job.number) != job.name:
            promise.broken.append(f"job {job.number} ({job.name}) was acknowledged and is lost")
        if names[job.name] > 1:
            promise.broken.append(f"{job.name} is in the queue {names[job.name]} times")
    return promise


def of_ends(jobs: Sequence[ToyJob], runs: Mapping[str, NotedRun], late: str | None) -> Promise:
    """Check the ends of jobs; `late` is a sentence on the jobs that did not end in time."""
    promise = Promise(ENDS, [late] if late else [])
    for job in jobs:
        state = job.view.get("state")
        if state is None:
            continue  # it is one of the late ones
        if state not in job.ends:
            wanted = " or ".join(sorted(job.ends))
            why = job.view.get("reason") or "no reason is recorded"
            promise.broken.append(f"{_told(job)} is {state}, and not {wanted}: {why}")
        elif state == states.SUCCEEDED:
            promise.broken += [f"{_told(job)}: {why}" for why in runs[job.name].unfinished()]
    return promise


def of_runs(jobs: Sequence[ToyJob], runs: Mapping[str, NotedRun]) -> list[Promise]:
    """Check the logs of the programs' steps."""
    alone, newest, whole, over = map(Promise, (ALONE, NEWEST, WHOLE, OVER))
    for job in jobs:
        run = runs[job.name]
        alone.broken += [f"{_told(job)}: {why}" for why in run.beside]
        newest.broken += [f"{_told(job)}: {why}" for why in run.again]
        whole.broken += [f"{_told(job)}: {why}" for why in run.lost]
        over.broken += [f"{_told(job)}: {why}" for why in (*run.late, *_again(job))]
    return [alone, newest, whole, over]


def _again(job: ToyJob) -> Iterator[str]:
    """Yield attempts that followed one with a recorded finish."""
    for attempt in job.view.get("attempts", ())[:-1]:
        try:
            record = json.loads((Path(attempt["run_dir"]) / "exit.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("outcome") == "finished":
            yield f"another attempt followed attempt {attempt['number']}, which had finished"


def of_daemon(own_ends: Sequence[str]) -> Promise:
    """Check the daemon's ends; `own_ends` are the ends without a kill."""
    return Promise(DAEMON, list(own_ends))


def of_processes(place: Path, patience: float = GONE_SECONDS) -> Promise:
    """Check for remaining processes, after the daemon and every job have ended."""
    deadline = time.monotonic() + patience
    while (left := own_processes(place)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return Promise(NOTHING_LEFT, [f"{describe(pid)} is left" for pid in left])


def _told(job: ToyJob) -> str:
    return f"job {job.number} ({job.name})"
