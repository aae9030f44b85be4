"""A job that is over, once more from the start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.operations.waiting_jobs import FindJob
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue_terms import QueueTerms
from zerotoolsd.service import Conflict
from zerotoolsd.submission import Admittance


class JobsAgain:
    """Queues jobs of the dispatcher again; `check_uid` raises Forbidden for who may not submit."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        submission: Admittance,
        find: FindJob,
        check_uid: Callable[[int], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._submission = submission
        self._find = find
        self._check_uid = check_uid

    async def retry(self, job_id: int, uid: int, output_dir: str | None) -> JobRow:
        """See `JobService`."""
        job = self._find(job_id)
        if job.state not in states.TERMINAL:
            raise Conflict(
                f"job {job_id} is not over: it is {job.state.replace('_', ' ')}; wait for its end, "
                "or cancel it"
            )
        if output_dir is not None and not Path(output_dir).is_absolute():
            raise BadRequest(f"output_dir = {output_dir}: must be an absolute path")
        # Whoever runs it again for another user, it is that user's program.
        owner = job.uid if self._dispatcher.users.own == 0 else uid
        self._check_uid(owner)
        spec = from_the_start(job.spec, str(self._dispatcher.jobs_dir))
        spec = spec if output_dir is None else replace(spec, output_dir=output_dir)
        least, most = self._dispatcher.priority_classes.range_of(owner)
        terms = QueueTerms(priority=min(max(job.priority, least), most))
        new, _ = await self._submission.submit(spec, uid=owner, key=None, terms=terms)
        return new


def from_the_start(spec: JobSpec, jobs_dir: str) -> JobSpec:
    """The job as it was before it was ever resumed: in a directory of its own where it had one, and
    not from its own checkpoints."""
    place = spec.output_dir
    if place is not None and spec.resume_from is not None and _is_within(spec.resume_from, place):
        spec = replace(spec, resume_from=None)
    if place is not None and re.fullmatch(rf"{re.escape(jobs_dir)}/[0-9]+/output", place):
        spec = replace(spec, output_dir=None)
    return spec


def _is_within(path: str, directory: str) -> bool:
    path, directory = os.path.normpath(path), os.path.normpath(directory)
    return path == directory or path.startswith(f"{directory}/")
