"""The results of jobs, in the format of the API: curves, checkpoints, predictions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerotools.jobs.step_curves import output_dirs_of
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_errors import Unavailable
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.operations.change_jobs import FindJob
from zerotoolsd.service.results.checkpoint_tree import checkpoint_tree
from zerotoolsd.service.results.evaluations import evaluations_of
from zerotoolsd.service.results.prediction_rows import prediction_rows
from zerotoolsd.service.results.run_curves import read_run
from zerotoolsd.service.submission import JobSubmission

MOST_BEFORE = 10_000
"""Earlier jobs of the same user that are searched for those that a job resumes, at most."""
MOST_ATTEMPTS = 1000


class JobResults:
    """The results of jobs that `find` finds; files of users are read as `submission` does it."""

    def __init__(self, dispatcher: Dispatcher, submission: JobSubmission, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._submission = submission
        self._find = find
        self._reading = asyncio.Lock()
        """Long runs take seconds of a processor: one at a time leaves the rest to others."""

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """Return curves; see `JobRequests`."""
        job = self._find(job_id)
        chain = self.chain(job)
        attempts = [
            (each.id, attempt.number, attempt.world_size, Path(attempt.run_dir))
            for each in chain
            for attempt in self._store.attempts(each.id)
        ]
        evaluations = [
            Path(attempt.run_dir)
            for each in chain
            for other in evaluations_of(self._store, each)
            for attempt in self._store.attempts(other.id)
        ]
        async with self._reading:
            newest = attempts[-MOST_ATTEMPTS:], evaluations[-MOST_ATTEMPTS:]
            run = await asyncio.to_thread(read_run, *newest)
            tree = await asyncio.to_thread(run.to_json, points)
        if not self._store.attempts(job.id):
            tree["follow"] = None
        return {"job": job.id, **tree}

    def chain(self, job: JobRow) -> list[JobRow]:
        """Return `job`, after the jobs of its user that it continues, the oldest first."""
        chain, sources = [job], _sources(job)
        if not sources:
            return chain
        for number, output in self._store.of_user.outputs_before(job.uid, job.id, MOST_BEFORE):
            if output in sources and self._store.attempts(number):
                chain.append(self._store.job(number))
                if not (sources := _sources(chain[-1])):
                    break
        return chain[::-1]

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return the checkpoints; see `JobRequests`."""
        return await self._look(self._find(job_id), checkpoint_tree)

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """Return predictions; see `JobRequests`."""
        return await self._look(self._find(job_id), prediction_rows, step, first, count)

    async def _look(
        self, job: JobRow, look: Callable[..., dict[str, Any]], *arguments: object
    ) -> dict[str, Any]:
        user = self._dispatcher.users.of(job.uid)
        if job.reading.spec is None:
            raise Unavailable(f"the record of job {job.id} cannot be read by this zerotoolsd")
        found: dict[str, Any] = await self._submission.look(
            job.reading.spec, look, job.output_dir, *arguments, user=user
        )
        return found


def _sources(job: JobRow) -> frozenset[str]:
    spec = job.reading.spec
    return output_dirs_of(spec.resume_from) if spec and spec.resume_from else frozenset()
