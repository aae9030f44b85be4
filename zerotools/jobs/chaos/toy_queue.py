"""The toy jobs of a fault-injection test.

A fixed number of jobs is in the queue at a time. The submission of a job is repeated until the
daemon acknowledges it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.errors import DaemonRefused
from zerotools.jobs import states
from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.own_processes import VARIABLE
from zerotools.jobs.chaos.toy_program import read_notes
from zerotools.jobs.client.daemon_client import PAGE, DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

SHORTEST, LONGEST = 2.0, 20.0
"""Bounds in seconds for the duration of the longest jobs, without pauses.

The shortest jobs take half as long.
"""
PACES = (0.05, 0.1, 0.2)
EVERY = (5, 10, 20)
MOST_RESTARTS = 1000
USER_HELD_SECONDS = (0.5, 3.0)
HELD_SECONDS = 5.0


@dataclass
class ToyJob:
    """A toy job, and its last known state.

    `ends` are the final states that are correct for this job.
    """

    name: str
    steps: int
    pace: float
    every: int
    notes: Path
    number: int | None = None
    state: str | None = None
    reason: str | None = None
    """The daemon's reason for the job's state, or the reason why the submission was not
    acknowledged.
    """
    ends: frozenset[str] = frozenset({states.SUCCEEDED})
    view: dict[str, Any] = field(default_factory=dict)
    """The job as the daemon reports it after the job's end; empty before."""
    due: float = 0.0
    """The time at which the held job is released."""

    @property
    def is_over(self) -> bool:
        """True if the daemon has reported the end of the job, in any state."""
        return bool(self.view)

    @property
    def seconds(self) -> float:
        """The time in seconds from the first start of the job to its end; 0 if the job has not
        ended.
        """
        started, ended = self.view.get("started"), self.view.get("ended")
        return max(0.0, ended - started) if started and ended else 0.0

    def lines(self) -> list[str]:
        """Return the lines of the log that the job's program writes."""
        return read_notes(self.notes)


class ToyQueue:
    """All toy jobs of the test in the directory `place`."""

    def __init__(self, place: Path, client: DaemonClient, request: ChaosOptions) -> None:
        self.jobs: list[ToyJob] = []
        self.resumed = 0
        """The number of times that a job held by the daemon was released."""
        self._place = place / "jobs"
        self._place.mkdir()
        self._drill = place
        self._client = client
        self._request = request
        self._random = random.Random(f"jobs {request.seed}")

    def live(self) -> list[ToyJob]:
        """Return the jobs that the daemon has acknowledged and that had not ended at the last
        `update`."""
        return [job for job in self.jobs if job.number is not None and not job.is_over]

    def fill(self) -> None:
        """Submit new jobs until the requested number of jobs is in the queue.

        Raises DaemonError if the daemon does not acknowledge a job.
        """
        while sum(not job.is_over for job in self.jobs) < self._request.jobs:
            self.jobs.append(self._make())
        self.submit()

    def submit(self) -> None:
        """Submit the jobs that the daemon has not acknowledged yet. Raises DaemonError."""
        for job in self.jobs:
            if job.number is None:
                try:
                    taken = self._client.submit(self._spec(job), idempotency_key=job.name)
                except DaemonRefused as error:
                    job.reason = str(error)
                    raise
                job.number = int(taken["id"])

    def _make(self) -> ToyJob:
        name = f"toy-{len(self.jobs) + 1}"
        most = min(max(self._request.trouble_seconds / 3, SHORTEST), LONGEST)
        seconds, pace = self._random.uniform(most / 2, most), self._random.choice(PACES)
        every = self._random.choice(EVERY)
        return ToyJob(name, round(seconds / pace), pace, every, self._place / f"{name}.notes")

    def _spec(self, job: ToyJob) -> JobSpec:
        checkpoints = self._place / f"{job.name}.checkpoints"
        command = [
            *(sys.executable, "-P", str(self._request.program)),
            *("--steps", str(job.steps), "--pace", str(job.pace), "--every", str(job.every)),
            *("--notes", str(job.notes), "--checkpoints", str(checkpoints)),
        ]
        tree: dict[str, Any] = {
            "name": job.name,
            "engine": "script",
            "device": "cpu",
            "ranks": 1,
            "max_restarts": MOST_RESTARTS,
            "retry": "always",
            "env": {VARIABLE: str(self._drill), **_libraries()},
            "script": {
                "command": command,
                "directory": str(self._place),
                "checkpoint_dir": str(checkpoints),
            },
        }
        return job_from_dict(tree, source=job.name)

    def update(self) -> None:
        """Request the states of the jobs from the daemon, and release the jobs that were held long
        enough. Raises DaemonError.
        """
        live = self.live()
        listed = {int(each["id"]): each for each in self._client.jobs(limit=3 * len(live) + 20)}
        for job in live:
            assert job.number is not None
            view = listed.get(job.number) or self._client.job(job.number)
            job.state, job.reason = str(view["state"]), view.get("reason")
            if job.state in states.TERMINAL:
                job.view = self._client.job(job.number)
            elif states.display_text(job.state) == states.HELD:
                self._release_when_due(job, job.number)
            else:
                job.due = 0.0

    def _release_when_due(self, job: ToyJob, number: int) -> None:
        now = time.monotonic()
        if not job.due:
            wait = self._random.uniform(*USER_HELD_SECONDS)
            job.due = now + (HELD_SECONDS if job.state == states.HELD else wait)
        elif now >= job.due:
            job.due = 0.0
            self._client.release(number)
            if job.state == states.HELD:
                self.resumed += 1

    def hold(self, job: ToyJob) -> None:
        """Hold a job, so that it saves and stops. The method `update` releases it later.

        Raises DaemonError.
        """
        assert job.number is not None
        self._client.hold(job.number)

    def cancel(self, job: ToyJob) -> None:
        """Cancel a job. It may still finish before the request reaches it. Raises DaemonError."""
        assert job.number is not None
        job.ends |= {states.CANCELLED}  # before the request: the response may be lost
        self._client.cancel(job.number)

    def listed(self) -> Iterator[dict[str, Any]]:
        """Yield all jobs that the daemon lists. Raises DaemonError."""
        after: int | None = None
        while found := self._client.jobs(limit=PAGE, after=after):
            yield from found
            after = int(found[-1]["id"])

    def states_of_live(self) -> str:
        """Return a text with the states of unfinished jobs, for a message."""
        return "; ".join(_describe_state(job) for job in self.jobs if not job.is_over)


def _describe_state(job: ToyJob) -> str:
    state = (job.state or "not acknowledged").replace("_", " ")
    return f"{job.name} is {state}" + (f" ({job.reason})" if job.reason else "")


def _libraries() -> dict[str, str]:
    """Return the environment variables that this Python interpreter may need to find its
    libraries.
    """
    names = ("LD_LIBRARY_PATH", "PYTHONHOME")
    return {name: os.environ[name] for name in names if name in os.environ}
