"""Changes the job file of a job that has not started.

All checks of a submit are repeated, and the job is changed in one transaction, unless it was
started meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from dataclasses import replace
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.job_arrays import check_key, remove_key, set_key
from zerotools.jobs.jobfile.derive_evaluation_job import is_evaluated
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.jobs.jobfile_tables.eval import TASK_KEYS
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.interface.api_types import Conflict, Unavailable
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.interface.start_conditions import AT_ANY_TIME, JobEdit
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.check_start_conditions import why_spoiled
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.write_rows import Changed, JobParts
from zerotoolsd.service.admission.dependency_check import refuse_past, refuse_ring
from zerotoolsd.service.operations.priority_and_array_changes import FindJob
from zerotoolsd.service.queue_evaluation_jobs import evaluations_of
from zerotoolsd.service.submission import JobSubmission
from zerotoolsd.users.account import user_name

_EDITABLE = frozenset({states.ON_HOLD, states.WAITING, states.QUEUED})
_OWN = frozenset({"captured_env"})


class JobEdits:
    """Edits the job files of jobs that have not started; `find` returns a job by its number."""

    def __init__(self, dispatcher: Dispatcher, submission: JobSubmission, find: FindJob) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._submission = submission
        self._find = find

    async def edit(self, job_id: int, edit: JobEdit, uid: int) -> JobRow:
        """Change a job and return its new row; see `JobRequests.edit`."""
        job = self._find(job_id)
        self._refuse_started(job)
        self._refuse_terms(job, edit, uid)
        spec = await edited_spec(job, edit)
        self._refuse_evaluated(job, spec)
        async with self._submission.edited(job, spec) as new:

            async def commit() -> JobRow:
                found = self._find(job.id)
                self._refuse_started(found)
                if _edited_part(found) != _edited_part(job):
                    raise Conflict(
                        f"job {job.id} was changed by another request; check it, and edit again"
                    )
                # Other jobs may have been edited, or have ended, during the check of the job file.
                self._refuse_terms(found, edit, uid)
                new.check()
                why = f"by {user_name(uid)}: {', '.join(edit.words)}"
                after, now = found.standing, time.time()
                old = self._store.dependencies.of(job.id)
                if edit.after is not None and found.state == states.ON_HOLD and why_spoiled(old):
                    go = f"to let it start: zerotools release {job.id}"
                    after = replace(after, reason=f"its dependencies were changed; {go}")
                with self._store.change(found, after, lifecycle.EDIT, now=now, why=why) as change:
                    place = spec.output_dir or str(new.default_output / str(job.id) / "output")
                    parts = new.parts or JobParts.of(spec)
                    name = spec.name or f"job-{job.id}"
                    texts = parts.full_text, parts.set_text
                    change.set_spec(name, *texts, place, new.expected)
                    if edit.after is not None:
                        self._store.dependencies.replace(job.id, edit.after)
                    if edit.begin is not None:
                        change.set_begin(None if edit.begin == AT_ANY_TIME else edit.begin)
                return self._find(job.id).with_reading(parts.spec)

            try:
                row = await when_free(commit)
            except Changed as error:
                raise Conflict(f"job {job.id} cannot be edited: {error}") from None
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"job {job.id} cannot be edited: writing the queue failed: {error}"
                ) from None
        self._dispatcher.add_queued(row)
        return row

    def _refuse_started(self, job: JobRow) -> None:
        if job.state not in _EDITABLE or self._store.attempts(job.id):
            raise Conflict(
                f"job {job.id} {states.predicate(job.state)}: only a job that never started "
                "can be edited; submit a new one"
            )

    def _refuse_evaluated(self, job: JobRow, spec: JobSpec) -> None:
        """Raise Conflict if the job's evaluation job would not match the edited job `spec`."""
        if _evaluated(job.spec) == _evaluated(spec):
            return
        others = evaluations_of(self._store, job)
        both = f"job {job.id} and its evaluation, job {others[0].id}" if others else "it"
        raise Conflict(
            f"job {job.id} cannot be edited: eval.tasks, the keys of that evaluation and "
            f"output_dir cannot change after submit; cancel {both}, then submit job {job.id} again"
        )

    def _refuse_terms(self, job: JobRow, edit: JobEdit, uid: int) -> None:
        """Raise BadRequest or Conflict if the start time or dependencies in `edit` are refused."""
        if job.state == states.QUEUED and (edit.after or edit.begin):
            waits = "its dependencies" if edit.after else "its start time"
            raise Conflict(
                f"job {job.id} is queued, and may start at any time; hold it before you set "
                f"{waits}: zerotools hold {job.id}"
            )
        if edit.begin != AT_ANY_TIME:
            refuse_past(edit.begin, time.time())
        if edit.after is not None:
            self._submission.dependable.refuse_hopeless(edit.after, uid)
            refuse_ring(self._store.dependencies, job.id, edit.after)


def _evaluated(spec: JobSpec) -> object:
    """Return the values in the job file that the job's evaluation job depends on; None if the job
    has no evaluation job.
    """
    if not is_evaluated(spec):
        return None
    return (
        spec.output_dir,
        spec.eval.tasks,
        spec.eval.batch_size,
        *(getattr(spec.eval, key) for key in TASK_KEYS),
    )


def _edited_part(job: JobRow) -> tuple[str, str | None, str]:
    """Return the fields of a job that an edit starts from: the complete job file, the submitted job
    file, and the state.

    If these fields have changed when the edit is committed, the edit is refused. The submitted job
    file is included because two job files may differ only in the keys that the user has set.
    """
    return job.spec_text, job.given_text, job.state


async def edited_spec(job: JobRow, edit: JobEdit) -> JobSpec:
    """Return the job file of `job` with the changes in `edit`.

    Raises BadRequest, Unsupported, UnreadableSpec.
    """
    tree: dict[str, Any]
    time_slice = TimeSlice()
    await asyncio.sleep(0)
    tree = job_to_dict(job.spec) if job.given_text is None else json.loads(job.given_text)
    for key in (*edit.set, *edit.unset):
        await time_slice.pause_if_due()
        check_key(key, "edit", _OWN)
    for key in edit.unset:
        await time_slice.pause_if_due()
        remove_key(tree, key)
    for key, value in edit.set.items():
        await time_slice.pause_if_due()
        set_key(tree, key, value)
    await asyncio.sleep(0)
    spec = job_from_dict(tree, source="job")
    await asyncio.sleep(0)
    if not edit.words:
        raise BadRequest("the request has no changes; name a key in set or unset, after or begin")
    return spec
