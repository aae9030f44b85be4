"""The results of jobs in the format of the API: curves, checkpoints, predictions, and examples."""

from __future__ import annotations

import asyncio
import shlex
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.join_attempt_curves import output_dirs_of
from zerotools.runs.find_job_checkpoints import directory_name
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_types import CheckedJob, Unavailable
from zerotoolsd.queue.rows import JobRow, UnreadableSpec
from zerotoolsd.service.downsample_curves import read_run
from zerotoolsd.service.operations.priority_and_array_changes import FindJob
from zerotoolsd.service.queue_evaluation_jobs import evaluations_of
from zerotoolsd.service.read_checkpoints_and_predictions import (
    checkpoint_picture,
    checkpoint_tree,
    prediction_rows,
)
from zerotoolsd.service.submission import JobSubmission

Found = TypeVar("Found")
MOST_BEFORE = 10_000
"""The largest number of a user's earlier jobs in which `chain` searches for continued jobs."""
MOST_ATTEMPTS = 1000
PICTURE_SECONDS = 60.0
"""Timeout for drawing a checkpoint. 20,000 tensors take 14 s on a busy processor."""


class JobResults:
    """Reads the results of jobs; `find` returns a job by its number."""

    def __init__(self, dispatcher: Dispatcher, submission: JobSubmission, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._submission = submission
        self._find = find
        self._reading = asyncio.Lock()
        """Reading a long run takes a processor for seconds, so one is read at a time."""

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """Return the training curves of a job; see `JobRequests.curves`."""
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
        """Return the user's jobs that `job` continues, the oldest first, and `job` at the end."""
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
        """Return the checkpoints of a job; see `JobRequests.checkpoints`."""
        return await self._read_files(self._find(job_id), checkpoint_tree)

    async def picture(self, job_id: int, step: int) -> str:
        """Return the picture of a checkpoint of a job; see `JobRequests.picture`."""
        job = self._find(job_id)
        path = shlex.quote(str(Path(job.output_dir) / directory_name(step)))
        by_hand = f"draw it in a terminal: zerotools inspect {path} --html checkpoint.html"
        return await self._read_files(
            job, checkpoint_picture, step, seconds=PICTURE_SECONDS, if_slow=by_hand
        )

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """Return generated texts of a job; see `JobRequests.predictions`."""
        return await self._read_files(self._find(job_id), prediction_rows, step, first, count)

    async def _read_files(
        self, job: JobRow, look: Callable[..., Found], *arguments: object, **limits: Any
    ) -> Found:
        user = self._dispatcher.users.of(job.uid)
        if job.reading.spec is None:
            raise Unavailable(f"the record of job {job.id} cannot be read by this zerotoolsd")
        found: Found = await self._submission.read_files(
            job.reading.spec, look, job.output_dir, *arguments, user=user, **limits
        )
        return found


def _sources(job: JobRow) -> frozenset[str]:
    spec = job.reading.spec
    return output_dirs_of(spec.resume_from) if spec and spec.resume_from else frozenset()


MOST_KEPT = 32
"""The largest number of cached results, of at most 64 KiB each."""
KEPT_SECONDS, FAILURE_SECONDS = 600.0, 10.0
"""Seconds for which examples, or the error of a failed call, are cached.

The user may change or repair the data in the meantime.
"""

Look = Callable[[JobSpec, int, int], Awaitable[CheckedJob]]
"""A function that returns the examples of a job.

Its arguments are the job, the uid of the user, and the number of examples. Raises ZerotoolsError.
"""
_Key = tuple[int, int, int]


@dataclass(frozen=True)
class _Kept:
    answer: dict[str, Any]
    until: float


class JobExamples:
    """Gets the first training examples of jobs from `look`, and caches them.

    `look` runs the job's interpreter, one at a time for each user. If a client disconnects, its
    `look` continues, so that the next client gets the cached examples.
    """

    def __init__(
        self,
        look: Look,
        *,
        most_kept: int = MOST_KEPT,
        failure_seconds: float = FAILURE_SECONDS,
    ) -> None:
        self._look = look
        self._most_kept, self._failure_seconds = most_kept, failure_seconds
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._looking: dict[int, asyncio.Task[None]] = {}

    async def read(self, job: JobRow, show: int, wait: float) -> dict[str, Any]:
        """Return the first `show` examples of `job`, in the format of `JobRequests.examples`.

        The examples are left out if they take longer than `wait` seconds. If they cannot be shown,
        `problem` has the reason.
        """
        try:
            spec = job.spec
        except UnreadableSpec as error:
            return _answer_of(job.id, problem=str(error))
        now = asyncio.get_running_loop().time
        key, deadline = (job.id, hash(job.spec_text), show), now() + wait
        while (answer := self._answer(key, now())) is None:
            looking = self._looking.get(job.uid)
            if looking is None:
                looking = self._begin(key, job.uid, spec)
            if (left := deadline - now()) <= 0:
                return _answer_of(job.id, is_ready=False)
            done, _ = await asyncio.wait([looking], timeout=left)
            for each in done:
                each.result()  # of an error that nobody foresaw
        return answer

    def _answer(self, key: _Key, now: float) -> dict[str, Any] | None:
        kept = self._kept.get(key)
        if kept is None or kept.until < now:
            return None
        self._kept.move_to_end(key)
        return kept.answer

    def _begin(self, key: _Key, uid: int, spec: JobSpec) -> asyncio.Task[None]:
        async def look() -> None:
            try:
                self._cache(key, await self._read_examples(key, uid, spec))
            finally:
                del self._looking[uid]

        self._looking[uid] = asyncio.create_task(look())
        return self._looking[uid]

    async def _read_examples(self, key: _Key, uid: int, spec: JobSpec) -> dict[str, Any]:
        job_id, _, show = key
        if spec.engine == "script":
            return _answer_of(job_id)
        # The examples are the same, and the checkpoint may be gone.
        fresh = replace(spec, resume_from=None, resume_order=None)
        try:
            found = await self._look(fresh, uid, show)
        except ZerotoolsError as error:
            return _answer_of(job_id, problem=str(error))
        return _answer_of(job_id, notes=found.notes, sample=found.sample)

    def _cache(self, key: _Key, answer: dict[str, Any]) -> None:
        seconds = KEPT_SECONDS if answer["problem"] is None else self._failure_seconds
        self._kept[key] = _Kept(answer, asyncio.get_running_loop().time() + seconds)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)


def _answer_of(job_id: int, *, is_ready: bool = True, **found: Any) -> dict[str, Any]:
    return {
        "job": job_id,
        "ready": is_ready,
        "notes": [],
        "sample": None,
        "problem": None,
        **found,
    }
