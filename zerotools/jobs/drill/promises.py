"""What zerotools promises, and whether it held in a drill.

Told of: the daemon's own answers, what the toy programs noted, and the processes of the machine.
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
"""So long what is ending may take."""
ONCE = "each acknowledged job is in the queue once"
ENDS = "each job came to its right end"
ALONE = "no attempt ran beside another"
NEWEST = "no step ran again that a checkpoint had"
WHOLE = "no saved step was lost"
OVER = "nothing ran again after it was done"
DAEMON = "the daemon ended only where it was killed"
NOTHING_LEFT = "no process is left over"


@dataclass
class Promise:
    """One promise, and what broke it: nothing, or sentences."""

    text: str
    broken: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether nothing broke it."""
        return not self.broken


def of_queue(jobs: Sequence[ToyJob], listed: Sequence[Mapping[str, Any]]) -> Promise:
    """Each acknowledged job is there, under its number, and no other has its name."""
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
    """`late` is what was said of the jobs that came to no end in the time that they had."""
    promise = Promise(ENDS, [late] if late else [])
    for job in jobs:
        state = job.view.get("state")
        if state is None:
            continue  # it is one of those that are late
        if state not in job.ends:
            wanted = " or ".join(sorted(job.ends))
            why = job.view.get("reason") or "no reason is told"
            promise.broken.append(f"{_told(job)} is {state}, and not {wanted}: {why}")
        elif state == states.SUCCEEDED:
            promise.broken += [f"{_told(job)}: {why}" for why in runs[job.name].unfinished()]
    return promise


def of_runs(jobs: Sequence[ToyJob], runs: Mapping[str, NotedRun]) -> list[Promise]:
    """What the programs noted of their steps."""
    alone, newest, whole, over = map(Promise, (ALONE, NEWEST, WHOLE, OVER))
    for job in jobs:
        run = runs[job.name]
        alone.broken += [f"{_told(job)}: {why}" for why in run.beside]
        newest.broken += [f"{_told(job)}: {why}" for why in run.again]
        whole.broken += [f"{_told(job)}: {why}" for why in run.lost]
        over.broken += [f"{_told(job)}: {why}" for why in (*run.late, *_again(job))]
    return [alone, newest, whole, over]


def _again(job: ToyJob) -> Iterator[str]:
    """Attempts that followed one of which it is on record that it finished."""
    for attempt in job.view.get("attempts", ())[:-1]:
        try:
            record = json.loads((Path(attempt["run_dir"]) / "exit.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("outcome") == "finished":
            yield f"another attempt followed attempt {attempt['number']}, which had finished"


def of_daemon(own_ends: Sequence[str]) -> Promise:
    """`own_ends`: how it ended where nobody had killed it."""
    return Promise(DAEMON, list(own_ends))


def of_processes(place: Path, patience: float = GONE_SECONDS) -> Promise:
    """Asked when the daemon has ended and every job is over."""
    deadline = time.monotonic() + patience
    while (left := own_processes(place)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return Promise(NOTHING_LEFT, [f"{describe(pid)} is left" for pid in left])


def _told(job: ToyJob) -> str:
    return f"job {job.number} ({job.name})"
