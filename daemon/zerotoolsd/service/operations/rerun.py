"""Runs an ended job once more: from its newest checkpoint, or from the start."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts import last_report
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.dispatch.remove_job_files import names_of
from zerotoolsd.interface.api_types import Conflict, Unavailable
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.interface.start_conditions import ANY, Dependency, QueueTerms
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.admission.checkpoints_and_conflicts import (
    newest_step,
    newest_undamaged,
    real_paths,
)
from zerotoolsd.service.operations.priority_and_array_changes import FindJob
from zerotoolsd.service.submission import JobSubmission

LOOKS_AT_ONCE = 8
"""The largest number of jobs of an array for which newest checkpoints are searched at a time."""


class JobReruns:
    """Queues ended jobs again; `check_uid` raises Forbidden for users who may not submit."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        submission: JobSubmission,
        find: FindJob,
        check_uid: Callable[[int], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._submission = submission
        self._find = find
        self._check_uid = check_uid

    async def retry(self, job_id: int, uid: int, output_dir: str | None) -> JobRow:
        """Queue an ended job again from step 0; see `JobRequests.retry`."""
        job = self._find(job_id)
        _check_over(job)
        if output_dir is not None and not Path(output_dir).is_absolute():
            raise BadRequest(f"output_dir = {output_dir}: must be an absolute path")
        owner = self._owner_of_next(job, uid)
        (spec,) = await self._from_the_start([job])
        spec = spec if output_dir is None else replace(spec, output_dir=output_dir)
        terms = self._terms_of_next(job, owner)
        new, _ = await self._submission.submit(spec, uid=owner, key=None, terms=terms)
        return new

    async def retry_array(
        self, members: Sequence[JobRow], uid: int, output_dir: str | None
    ) -> list[JobRow]:
        """Queue all jobs of an array again from step 0; see `JobRequests.retry_array`."""
        for job in members:
            _check_over(job)
        if output_dir is not None and not Path(output_dir).is_absolute():
            raise BadRequest(f"output_dir = {output_dir}: must be an absolute path")
        owner = self._owner_of_next(members[0], uid)
        specs = []
        for job, spec in zip(members, await self._from_the_start(members), strict=True):
            assert job.array is not None
            if output_dir is not None:
                spec = replace(spec, output_dir=str(Path(output_dir) / str(job.array.index)))
            specs.append((spec, job.array.label))
        return await self._submit_again(specs, members, owner)

    async def _from_the_start(self, jobs: Sequence[JobRow]) -> list[JobSpec]:
        """Return the job files of `jobs` as they were before the jobs were first resumed."""
        specs, real, time_slice = list[JobSpec](), dict[str, str](), TimeSlice()
        for job in jobs:
            specs.append(job.spec)
            await time_slice.pause_if_due()
        named = [path for spec in specs for path in (spec.output_dir, spec.resume_from) if path]
        if any(spec.resume_from for spec in specs):
            user = self._dispatcher.users.of(jobs[0].uid)
            found = await self._submission.read_files(specs[0], real_paths, named, user=user)
            real = dict(zip(named, map(str, found), strict=True))
        own, first = names_of(str(self._dispatcher.jobs_dir)), list[JobSpec]()
        for spec in specs:
            first.append(from_the_start(spec, own, real))
            await time_slice.pause_if_due()
        return first

    async def resume(self, job_id: int, uid: int) -> JobRow:
        """Resume an ended job; see `JobRequests.resume`."""
        job = self._find(job_id)
        return await (
            self._resume_held(job)
            if job.state == states.HELD
            else self.retry_from_newest(job_id, uid)
        )

    async def retry_from_newest(self, job_id: int, uid: int) -> JobRow:
        """Queue an ended job again from its newest checkpoint; see `JobRequests.retry`."""
        job = self._find(job_id)
        _check_over(job)
        if _has_done_all(job):
            raise Conflict(
                f"job {job_id} has succeeded: all its steps are done; to train longer, submit its "
                f'job file with more steps and resume_from = "{job.output_dir}"; to run it again '
                f"from the start: zerotools retry --from-start {job_id}"
            )
        spec, begun = await self._continued(job)
        owner = self._owner_of_next(job, uid)
        terms = self._terms_of_next(job, owner)
        new, _ = await self._submission.submit(
            spec, uid=owner, key=None, rehearse=not begun, terms=terms
        )
        return new

    async def retry_array_from_newest(self, members: Sequence[JobRow], uid: int) -> list[JobRow]:
        """Queue all jobs of an array again as `retry_array` does, from their newest checkpoints."""
        for job in members:
            _check_over(job)
        left, time_slice = list[JobRow](), TimeSlice()
        for job in members:
            left += [] if _has_succeeded(job) else [job]
            await time_slice.pause_if_due()
        if not left:
            raise Conflict(
                f"all {len(members)} jobs of the array have succeeded; to run them again from the "
                f"start: zerotools retry --from-start @{members[0].id}"
            )
        specs = list[tuple[JobSpec, str]]()
        for first in range(0, len(left), LOOKS_AT_ONCE):
            some = left[first : first + LOOKS_AT_ONCE]
            found = await asyncio.gather(*map(self._continued, some))
            for job, (spec, _) in zip(some, found, strict=True):
                assert job.array is not None
                specs.append((spec, job.array.label))
            await time_slice.pause_if_due()
        owner = self._owner_of_next(left[0], uid)
        return await self._submit_again(specs, left, owner)

    async def _submit_again(
        self, specs: Sequence[tuple[JobSpec, str]], members: Sequence[JobRow], owner: int
    ) -> list[JobRow]:
        """Submit `specs` (job and label of each) as a new array that repeats the jobs `members`.

        Each new job keeps the queue terms (priority, dependencies) of the job that it repeats.
        """
        of_each, time_slice = list[QueueTerms](), TimeSlice()
        for job in members:
            of_each.append(self._terms_of_next(job, owner))
            await time_slice.pause_if_due()
        after = dict.fromkeys(each for terms in of_each for each in terms.after)
        terms = replace(of_each[0], after=tuple(after))
        return await self._submission.submit_array(
            specs, uid=owner, key=None, terms=terms, of_each=of_each
        )

    async def _continued(self, job: JobRow) -> tuple[JobSpec, bool]:
        """Return the job file with which `job` continues from its newest checkpoint, and True.

        If a job of the built-in trainer has no checkpoint, return the job file of a new job, and
        False.
        """
        spec = replace(job.spec, output_dir=job.output_dir)
        if spec.engine == "script":
            return await self._from_newest(job, spec), True
        if await self._newest_step(job) is not None:
            return replace(spec, resume_from=job.output_dir), True
        return spec, False

    async def _from_newest(self, job: JobRow, spec: JobSpec) -> JobSpec:
        """Return `spec`, the job file of a script, with its newest undamaged checkpoint in
        `resume_from`.

        Checkpoints that the script itself reported are preferred to checkpoints that were found by
        a search. Return `spec` unchanged if there is no checkpoint.

        Raises Conflict if all checkpoints are damaged.
        """
        attempts = self._store.attempts(job.id)
        paths = last_report.reported_by_program(attempts)
        paths += [path for path in last_report.checkpoints_before(attempts) if path not in paths]
        if not paths:
            return spec
        user = self._dispatcher.users.of(job.uid)
        found = await self._submission.read_files(spec, newest_undamaged, paths, user=user)
        if found["path"] is None:
            raise Conflict(
                f"job {job.id} cannot be resumed, because it has no complete checkpoint: "
                f"{found['why']}; put back a complete one, or start from the beginning: "
                f"zerotools retry --from-start {job.id}"
            )
        return replace(spec, resume_from=str(found["path"]))

    async def _newest_step(self, job: JobRow) -> int | None:
        user = self._dispatcher.users.of(job.uid)
        found = await self._submission.read_files(job.spec, newest_step, job.output_dir, user=user)
        return None if found is None else int(found)

    async def _resume_held(self, job: JobRow) -> JobRow:
        if not self._store.open_tokens(job.id):
            _ = job.spec  # it would be held again at once, for the same reason

        async def resume() -> None:
            self._dispatcher.resume(self._find(job.id))

        try:
            await when_free(resume)
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job.id} cannot be resumed: writing the queue failed: {error}"
            ) from None
        return self._find(job.id)

    def _terms_of_next(self, job: JobRow, owner: int) -> QueueTerms:
        """Return the queue terms of the job that still apply when the job is run again.

        The priority is limited to the range of the user `owner`. A start time is kept if it is in
        the future. Dependencies are kept on jobs that have not ended. The reference to the job that
        this job evaluates is always kept.
        """
        least, most = self._dispatcher.priority_classes.range_of(owner)
        evaluates, after = job.spec.script.evaluates is not None, list[Dependency]()
        for each in self._store.dependencies.of(job.id):
            state = self._store.state(each.on_id)
            if state is not None and (state not in states.TERMINAL or evaluates):
                condition = ANY if state in states.TERMINAL else each.condition
                after.append(Dependency(job_id=each.on_id, condition=condition))
        return QueueTerms(
            priority=min(max(job.priority, least), most),
            begin=job.begin if job.begin is not None and job.begin > time.time() else None,
            after=tuple(after),
        )

    def _owner_of_next(self, job: JobRow, uid: int) -> int:
        """Return the uid of the owner of the new job. Raises Forbidden.

        If an administrator repeats the job of another user, its program still runs as that user.
        """
        owner = job.uid if self._dispatcher.users.own == 0 else uid
        self._check_uid(owner)
        return owner


def _has_done_all(job: JobRow) -> bool:
    """Return whether the job has done all its training steps.

    Return False for a script, because only its user knows how many steps it has.
    """
    return _has_succeeded(job) and job.spec.engine != "script"


def _has_succeeded(job: JobRow) -> bool:
    """Return whether the job has succeeded and nothing failed afterwards, such as an export."""
    return job.state == states.SUCCEEDED and not job.standing.reason


def _check_over(job: JobRow) -> None:
    if states.display_text(job.state) in (states.HELD, states.display_text(states.PAUSING)):
        words = states.display_text(job.state)
        raise Conflict(f"job {job.id} is {words}; let it continue: zerotools release {job.id}")
    if job.state not in states.TERMINAL:
        raise Conflict(
            f"job {job.id} is not over: it is {states.display_text(job.state)}; wait for its end, "
            "or cancel it"
        )


def from_the_start(
    spec: JobSpec, jobs_dirs: Sequence[str], real: Mapping[str, str] = MappingProxyType({})
) -> JobSpec:
    """Return the job file `spec` as it was before the job was first resumed.

    If the job used the default output directory, the result names no output directory. A
    `resume_from` that names a checkpoint of the job itself is removed. `jobs_dirs` are the paths
    under which the directory of all jobs is known. `real`: path of the job -> the path with links
    resolved.
    """
    place, start = spec.output_dir, spec.resume_from
    pairs = {(start, place), (real.get(start or ""), real.get(place or ""))}
    if any(one and other and _is_within(one, other) for one, other in pairs):
        spec = replace(spec, resume_from=None)
    own = "|".join(map(re.escape, jobs_dirs))
    if place is not None and re.fullmatch(rf"(?:{own})/[0-9]+/output", place):
        spec = replace(spec, output_dir=None)
    return spec


def _is_within(path: str, directory: str) -> bool:
    path, directory = os.path.normpath(path), os.path.normpath(directory)
    return path == directory or path.startswith(f"{directory}/")
