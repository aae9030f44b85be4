"""The report of a fault-injection test: the guarantees of zerotools, and whether they held."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.chaos.inject_faults import Fault
from zerotools.jobs.chaos.own_processes import command_line, own_processes
from zerotools.jobs.chaos.toy_program import RunLog
from zerotools.jobs.chaos.toy_queue import ToyJob

GONE_SECONDS = 5.0
"""The time limit in seconds for the processes of the test to end."""
ONCE = "each acknowledged job is in the queue once"
ENDS = "each job ended as it should"
ALONE = "no two attempts of a job ran at the same time"
NEWEST = "no saved step ran again"
WHOLE = "no saved step was lost"
OVER = "no job ran again after it had finished"
DAEMON = "the daemon ended only when it was killed"
NOTHING_LEFT = "no process is left"


@dataclass(frozen=True, kw_only=True)
class ChaosReport:
    """The results of a fault-injection test.

    Attributes:
        states: final state -> the number of jobs that ended in this state.
        attempts: the number of starts of jobs, including restarts.
        began: the number of jobs that were started at least once.
        place: the test's directory; None if it was removed.
    """

    seed: int
    seconds: float
    faults: Sequence[Fault]
    states: Mapping[str, int]
    attempts: int
    began: int
    resumed: int
    daemon_starts: int
    tally: Tally
    promises: Sequence[Guarantee]
    place: Path | None

    @property
    def is_upheld(self) -> bool:
        """True if no guarantee was violated."""
        return all(promise.is_upheld for promise in self.promises)

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of injected faults, keyed by the kind of fault."""
        return dict(sorted(Counter(fault.kind for fault in self.faults).items()))

    @property
    def restarts(self) -> int:
        """The number of restarts of jobs: all starts, without the first start of each job."""
        return self.attempts - self.began

    def to_json(self) -> dict[str, Any]:
        """Return the report as values for JSON.

        `effective_training_time` is a fraction, or None if no time was measured.
        """
        tally = self.tally
        return {
            "held": self.is_upheld,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "effective_training_time": round(tally.effective, 4) if tally.seconds else None,
            "steps_run": tally.steps_run,
            "steps_kept": tally.steps_kept,
            "ends": {"all": sum(self.states.values()), **self.states},
            "restarts": self.restarts,
            "resumed": self.resumed,
            "daemon_starts": self.daemon_starts,
            "faults": {"all": len(self.faults), "by_kind": self.by_kind},
            "promises": [{**asdict(each), "held": each.is_upheld} for each in self.promises],
            "timeline": [
                {"seconds": round(each.seconds, 3), "kind": each.kind, "what": each.what}
                for each in self.faults
            ],
            "directory": None if self.place is None else str(self.place),
        }


@dataclass
class Guarantee:
    """A guarantee of zerotools. `broken` has a sentence for each violation that the test found."""

    text: str
    broken: list[str] = field(default_factory=list)

    @property
    def is_upheld(self) -> bool:
        """True if no violation was found."""
        return not self.broken


def of_queue(jobs: Sequence[ToyJob], listed: Sequence[Mapping[str, Any]]) -> Guarantee:
    """Check that each acknowledged job is in the queue under its number, and that no two jobs have
    the same name."""
    promise = Guarantee(ONCE)
    names = Counter(str(each["name"]) for each in listed)
    numbers = {int(each["id"]): str(each["name"]) for each in listed}
    for job in jobs:
        if job.number is not None and numbers.get(job.number) != job.name:
            promise.broken.append(
                f"job {job.number} ({job.name}) was acknowledged, but the queue does not have it"
            )
        if names[job.name] > 1:
            promise.broken.append(f"{job.name} is in the queue {names[job.name]} times")
    return promise


def of_ends(jobs: Sequence[ToyJob], runs: Mapping[str, RunLog], late: str | None) -> Guarantee:
    """Check that each job ended in an allowed state.

    `late` is a sentence about the jobs that did not end in time; None if all jobs ended in time.
    """
    promise = Guarantee(ENDS, [late] if late else [])
    for job in jobs:
        state = job.view.get("state")
        if state is None:
            continue  # this job did not end in time: `late` names it
        if state not in job.ends:
            wanted = " or ".join(sorted(job.ends))
            why = job.view.get("reason") or "no reason is recorded"
            promise.broken.append(f"{_label(job)} is {state}, but should be {wanted}: {why}")
        elif state == states.SUCCEEDED:
            promise.broken += [f"{_label(job)}: {why}" for why in runs[job.name].unfinished()]
    return promise


def of_runs(jobs: Sequence[ToyJob], runs: Mapping[str, RunLog]) -> list[Guarantee]:
    """Check the steps in the logs of the programs.

    No step may be lost, run again after it was saved, run by two attempts at the same time, or run
    after the job has finished.
    """
    alone, newest, whole, over = map(Guarantee, (ALONE, NEWEST, WHOLE, OVER))
    for job in jobs:
        run = runs[job.name]
        alone.broken += [f"{_label(job)}: {why}" for why in run.overlapping]
        newest.broken += [f"{_label(job)}: {why}" for why in run.repeated]
        whole.broken += [f"{_label(job)}: {why}" for why in run.lost]
        over.broken += [f"{_label(job)}: {why}" for why in (*run.after_end, *_finished_twice(job))]
    return [alone, newest, whole, over]


def _finished_twice(job: ToyJob) -> Iterator[str]:
    """Yield a sentence for each attempt that finished the job, but was followed by another one."""
    for attempt in job.view.get("attempts", ())[:-1]:
        try:
            record = json.loads((Path(attempt["run_dir"]) / "exit.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("outcome") == "finished":
            yield f"another attempt followed attempt {attempt['number']}, which had finished"


def of_daemon(unexpected_exits: Sequence[str]) -> Guarantee:
    """Check that the daemon ended only when the test killed it.

    `unexpected_exits` has a description of every end of the daemon that the test did not cause.
    """
    return Guarantee(DAEMON, list(unexpected_exits))


def of_processes(place: Path, patience: float = GONE_SECONDS) -> Guarantee:
    """Check that no process of the test remains.

    The processes have at most `patience` seconds to end.
    """
    deadline = time.monotonic() + patience
    while (left := own_processes(place)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return Guarantee(NOTHING_LEFT, [f"{command_line(pid)} is left" for pid in left])


def _label(job: ToyJob) -> str:
    return f"job {job.number} ({job.name})"


@dataclass
class Tally:
    """Sums over all jobs of the test. Times are in seconds.

    `steps_run` counts all steps that were run, including repeated steps. `steps_kept` counts the
    steps up to the last checkpoint of each job, and `kept_seconds` is the time that these steps
    take. `seconds` is the time from the first start to the end of each job. `idle` counts the
    attempts that started after the last step was saved.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    idle: int = 0
    steps_run: int = 0
    steps_kept: int = 0
    kept_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, lines: Sequence[str], pace: float) -> None:
        """Count the attempts and steps in `lines`, the log of one job.

        A step of this job takes `pace` seconds.
        """
        run = [int(line.split()[1]) for line in lines if line.startswith("step ")]
        saved = [int(line.split()[1]) for line in lines if line.startswith("saved ")]
        kept = max(saved, default=0)
        self.attempts += sum(line.startswith("began") for line in lines)
        self.steps_run += len(run)
        self.steps_kept += kept
        self.kept_seconds += kept * pace

    @property
    def kept(self) -> float:
        """The number of steps in the last checkpoints, divided by the number of steps that were
        run; 1 if no step was run.
        """
        return self.steps_kept / self.steps_run if self.steps_run else 1.0

    @property
    def effective(self) -> float:
        """The fraction of the jobs' time that was spent on the steps in the last checkpoints; 1 if
        no time was measured.
        """
        return self.kept_seconds / self.seconds if self.seconds else 1.0
