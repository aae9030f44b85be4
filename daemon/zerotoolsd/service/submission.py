"""Queues jobs. Most checks of a job run before the transaction, and the last checks inside it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import INDEX_VARIABLE
from zerotools.jobs.jobfile.derive_evaluation_job import count_jobs, is_evaluated
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.training_estimate import kernels_of
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.attempts.resource_limits import why_refused
from zerotoolsd.dispatch.checkpoint_pins import SubmittedJobPins
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.dispatch.remove_job_files import CLEANING_LOOKS
from zerotoolsd.file_checks.file_checker_pool import Ask, SlowCheck
from zerotoolsd.interface.api_types import CheckedJob, Conflict, Unavailable
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.interface.start_conditions import PLAIN_TERMS, QueueTerms
from zerotoolsd.monitoring.notifications.webhooks import why_job_refused
from zerotoolsd.queue.array_job_files import sliced_texts
from zerotoolsd.queue.directories_in_use import DirectoryWriters
from zerotoolsd.queue.group_commit import GroupCommit, when_free
from zerotoolsd.queue.request_from_job_file import (
    gpu_memory_for,
    memory_of_host,
    memory_of_machine,
    need_of,
)
from zerotoolsd.queue.rows import ArrayPlace, JobRow
from zerotoolsd.queue.scheduling.suitable_gpus import why_impossible
from zerotoolsd.queue.scheduling.user_quota import never_within
from zerotoolsd.queue.write_rows import JobParts, NewJob
from zerotoolsd.service.admission.adoptable_process import inspect_process
from zerotoolsd.service.admission.checkpoints_and_conflicts import (
    directory_conflict,
    named_places,
    newest_step,
    newest_undamaged,
    real_paths,
)
from zerotoolsd.service.admission.dependency_check import DependencyCheck, refuse_many, refuse_past
from zerotoolsd.service.admission.interpreter_check import Needs, check_interpreter
from zerotoolsd.service.admission.memory_check import (
    MachineMemory,
    expected_text,
    note_of,
    why_never,
)
from zerotoolsd.service.admission.preflight_files import too_large
from zerotoolsd.service.admission.run_file_checks import Survey, survey_job_files, survey_of
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks
from zerotoolsd.service.queue_evaluation_jobs import evaluation_of, refuse_many_evaluations
from zerotoolsd.service.read_checkpoints_and_predictions import RESULT_LOOKS
from zerotoolsd.service.user_lookup import uid_of, who_is
from zerotoolsd.supervisor.transient_os_errors import is_transient
from zerotoolsd.users.account import user_name
from zerotoolsd.users.start_as_submitter import JobUser
from zerotoolsd.users.user_limits import why_queued_too_much

LOOK_SECONDS = 10.0
"""Timeout for the check of a job's files at submit."""


_LAST_REHEARSED = 16
"""The number of jobs that are remembered after they passed a dry run in a check.

Their submit does not repeat the dry run.
"""

_CheckedPython = tuple[str, Mapping[str, str], Needs]
InterpreterCheck = Callable[[str, Mapping[str, str], Needs, JobUser | None], Awaitable[None]]
"""Function of (interpreter, environment, requirements, user); raises BadRequest."""
Rehearsal = Callable[[JobSpec, str, Mapping[str, str], JobUser | None, int], Awaitable[CheckedJob]]
"""Function of (job, interpreter, environment, user, number of examples) that returns notes on the
model and the data; raises BadRequest."""


_OWN_LOOKS = (
    *(directory_conflict, survey_job_files, newest_step, newest_undamaged, real_paths),
    *(who_is, uid_of, inspect_process),
)
LOOKS = {look.__name__: look for look in (*_OWN_LOOKS, *CLEANING_LOOKS, *RESULT_LOOKS)}
"""The functions of the child process that reads files, by name."""


@dataclass(frozen=True)
class _CheckedJob:
    """A job after the checks of its files.

    `seen` has the results of the checks; None if the job was queued by an earlier request with the
    same key. `evaluation` makes the evaluation job of this job, if it has one.
    """

    parts: JobParts
    seen: Survey | None
    coming: SubmittedJobPins
    writers: DirectoryWriters
    evaluation: Callable[[JobRow], NewJob] | None

    def note(self, job_id: int) -> None:
        """Reserve the output directory for job `job_id`, which is being queued."""
        self.writers.note(job_id, self.seen.place if self.seen else None)

    def queued(self, job_id: int) -> None:
        """Reserve the output directory for job `job_id`, and pin the checkpoints that it needs."""
        self.note(job_id)
        self.coming.set_job_id(job_id)


class JobSubmission:
    """Checks and queues jobs; `ask` calls a function in the child process that reads files."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        check_python: InterpreterCheck = check_interpreter,
        rehearse: Rehearsal = run_rank_checks,
        ask: Ask,
    ) -> None:
        self._dispatcher = dispatcher
        self._check_python = check_python
        self._rehearse = rehearse
        self._ask = ask
        self._group = GroupCommit(dispatcher.store)
        self._writers = DirectoryWriters(dispatcher.store, dispatcher.jobs_dir)
        self.dependable = DependencyCheck(dispatcher.store)
        self._rehearsed: list[tuple[JobUser | None, str]] = []

    async def submit(
        self,
        spec: JobSpec,
        *,
        uid: int,
        key: str | None,
        rehearse: bool = True,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> tuple[JobRow, bool]:
        """Submit a job with the idempotency key `key`; see `JobRequests.submit`.

        Without `rehearse`, the checks in the job's interpreter are skipped.
        """
        try:
            with self._group.announce():
                job, new = await self._submit(spec, uid, key, rehearse, terms)
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"the job cannot be queued: writing the queue failed: {error}"
            ) from None
        if new:
            self._dispatcher.add_queued(job)
        return job, new

    async def _submit(
        self, spec: JobSpec, uid: int, key: str | None, rehearse: bool, terms: QueueTerms
    ) -> tuple[JobRow, bool]:
        parts = await _parts_of(spec)
        known = self._dispatcher.store.by_key(uid, key) is not None
        if not known:
            terms = self._allowed_terms(
                uid, terms, size=len(parts.full_text), count=count_jobs([spec])
            )
        looked = self._checked(parts, uid, look=not known, rehearse=rehearse)
        async with looked as coming:
            # No other task runs between the check and the commit, because two submits may come at
            # once.
            check = partial(self._check_last, [coming], uid, terms)
            new = self._new_job(coming, uid=uid, key=key, terms=terms)
            return await self._group.submit(replace(new, check=check))

    async def submit_array(
        self,
        members: Sequence[tuple[JobSpec, str]],
        *,
        uid: int,
        key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
        of_each: Sequence[QueueTerms] = (),
    ) -> list[JobRow]:
        """Submit an array; see `JobRequests.submit_array`.

        `of_each` are the queue terms of each job, if these differ. In that case `terms` must name
        all jobs that any job of the array waits for.
        """
        named = [
            (label or str(spec.name), spec.output_dir, spec.resume_from) for spec, label in members
        ]
        refuse_many(of_each or [terms] * len(members))
        refuse_many_evaluations(spec for spec, _ in members)
        user = self._dispatcher.users.of(uid)
        if (
            problem := await self.read_files(members[0][0], directory_conflict, named, user=user)
        ) is not None:
            raise BadRequest(problem)
        known = self._dispatcher.store.by_key(uid, key) is not None
        if not known:
            terms = self._allowed_terms(uid, terms, count=count_jobs(spec for spec, _ in members))
        async with AsyncExitStack() as stack:
            looked, pythons = list[_CheckedJob](), list[_CheckedPython]()
            for spec, _ in members:
                parts, first = await _parts_of(spec), not looked
                one = self._checked(parts, uid, look=not known, rehearse=first, pythons=pythons)
                looked.append(await stack.enter_async_context(one))
            labels = [label for _, label in members]
            each_terms = of_each or [terms] * len(labels)
            make = partial(self._new_members, looked, labels, uid, key, each_terms)
            check = partial(self._check_last, looked, uid, terms)
            try:
                found, is_new = await self._write_array(looked, make, check, write=not known)
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"the jobs cannot be queued: writing the queue failed: {error}"
                ) from None
            queued = await _note_all(looked, found) if is_new else list(found)
        self._dispatcher.announce()
        return queued

    async def _new_members(
        self,
        looked: Sequence[_CheckedJob],
        labels: Sequence[str],
        uid: int,
        key: str | None,
        terms: Sequence[QueueTerms],
        texts: Sequence[int],
    ) -> list[NewJob]:
        """Return the jobs of an array for the queue; other requests run in between.

        `texts` are the numbers of the job files in the database, if they are already written.
        """
        jobs, time_slice, size = list[NewJob](), TimeSlice(), len(looked)
        for index, (each, label) in enumerate(zip(looked, labels, strict=True)):
            new = self._new_job(
                each,
                uid=uid,
                key=None if index else key,
                terms=terms[index],
                array=ArrayPlace(id=0, index=index, size=size, label=label),
                text_number=texts[index] if texts else None,
            )
            jobs.append(new)
            await time_slice.pause_if_due()
        return jobs

    async def _write_array(
        self,
        looked: Sequence[_CheckedJob],
        make: Callable[[Sequence[int]], Awaitable[Sequence[NewJob]]],
        check: Callable[[], None],
        *,
        write: bool,
    ) -> tuple[Iterator[JobRow], bool]:
        """Add the jobs of an array to the queue: first write their job files in several
        transactions, then add the jobs in a short one. `make` returns the jobs. Return the result
        of `Store.submit_array`.
        """
        store, numbers = self._dispatcher.store, list[int]()
        texts = [(each.parts.full_text, each.parts.set_text) for each in looked]

        async def written(some: Sequence[tuple[str, str]]) -> list[int]:
            return store.texts.write(some)

        is_new = False
        if write:
            check()  # refused jobs are not written first
        try:
            for some in sliced_texts(texts) if write else ():
                numbers += await when_free(partial(written, some))
                await asyncio.sleep(0)
            jobs = await make(numbers)
            await asyncio.sleep(0)

            async def commit() -> tuple[Iterator[JobRow], bool]:
                return store.submit_array(jobs, check)

            found, is_new = await when_free(commit)
            return found, is_new
        finally:
            if numbers and not is_new:
                store.texts.refuse(numbers)
                with suppress(sqlite3.OperationalError):  # they are deleted with the next
                    while store.texts.delete_refused():
                        await asyncio.sleep(0)

    @asynccontextmanager
    async def edited(self, job: JobRow, spec: JobSpec) -> AsyncIterator[NewJob]:
        """Check the changed job file `spec` as `submit` does, and yield the new job.

        The caller must write the job to the queue inside the context.
        """
        uid, parts = job.uid, await _parts_of(spec)
        self._allowed_terms(uid, PLAIN_TERMS, size=len(parts.full_text), own=job.id)
        async with self._checked(parts, uid) as coming:
            check = partial(self._check_last, [coming], uid, PLAIN_TERMS, job.id)
            new = self._new_job(coming, uid=uid, key=None, terms=PLAIN_TERMS)
            yield replace(new, check=check)
            self._writers.forget(job.id)
            self._dispatcher.store.of_user.forget()
            coming.queued(job.id)

    def _allowed_terms(
        self, uid: int, terms: QueueTerms, *, size: int = 0, count: int = 1, own: int | None = None
    ) -> QueueTerms:
        """Return the effective queue terms for `count` jobs with `size` characters of text in all.

        `own` is the number of a job that is changed. Raises Unavailable, BadRequest, Forbidden and
        Conflict if the jobs may not be queued.
        """
        self._refuse_full()
        self._refuse_over(uid, size, count, own)
        return self._checked_terms(terms, uid)

    @asynccontextmanager
    async def _checked(
        self,
        parts: JobParts,
        uid: int,
        *,
        look: bool = True,
        rehearse: bool = True,
        pythons: list[_CheckedPython] | None = None,
    ) -> AsyncIterator[_CheckedJob]:
        """Check the files of a job, and yield the checked job for the queue.

        `pythons` are interpreters that were checked for other jobs of the array; the interpreter of
        this job is added.

        Without `look` nothing is checked. This is for a job that an earlier request with the same
        key has queued, because its files may be gone since then.
        """
        spec, text = parts.spec, parts.full_text
        user = self._dispatcher.users.of(uid)
        with self._dispatcher.needed.pin_submitted(text, uid) as coming:
            seen: Survey | None = None
            if look:
                seen = await self._check(spec, text, user, [] if pythons is None else pythons)
                coming.add_resolved_paths(seen.named)
                if rehearse and seen.asked and (user, text) not in self._rehearsed:
                    await self._ask_interpreter(spec, user)
            jobs_dir = self._dispatcher.jobs_dir
            evaluation = evaluation_of(spec, jobs_dir) if is_evaluated(spec) else None
            yield _CheckedJob(parts, seen, coming, self._writers, evaluation)
        await asyncio.sleep(0)  # of many jobs, others are answered between two

    def _checked_terms(self, terms: QueueTerms, uid: int) -> QueueTerms:
        """Check the queue terms, and return them with the effective priority of user `uid`.

        Raises BadRequest, Conflict, Forbidden.
        """
        classes = self._dispatcher.priority_classes
        self.dependable.refuse_hopeless(terms.after, uid)
        refuse_past(terms.begin, time.time())
        return replace(terms, priority=classes.priority_for(uid, terms.priority))

    def _new_job(
        self,
        looked: _CheckedJob,
        *,
        uid: int,
        key: str | None,
        terms: QueueTerms,
        array: ArrayPlace | None = None,
        text_number: int | None = None,
    ) -> NewJob:
        spec = looked.parts.spec
        return NewJob(
            uid=uid,
            name=spec.name,
            spec=spec,
            output_dir=spec.output_dir,
            default_output=self._dispatcher.jobs_dir,
            idempotency_key=key,
            now=time.time(),
            priority=terms.priority or 0,
            hold=f"held by {user_name(uid)} when it was submitted" if terms.hold else None,
            begin=terms.begin,
            after=terms.after,
            array=array,
            parts=looked.parts,
            text_number=text_number,
            queued=looked.queued if array is None else looked.note,
            expected=expected_text(looked.seen.memory if looked.seen else None),
            followed_by=looked.evaluation,
        )

    def _refuse_full(self) -> None:
        """Raise Unavailable if the disk is nearly full, or the queue was moved away. Queued jobs
        need the remaining space.
        """
        if (why := self._dispatcher.store.disk_reserve.why_full()) is not None:
            raise Unavailable(f"the job cannot be queued: {why}")

    def _refuse_over(self, uid: int, size: int, count: int, own: int | None) -> None:
        """Raise Conflict if `count` more jobs, which have `size` characters in all, exceed the
        user's limits.

        `own` is the number of a job that is changed: it does not count as a new job, and needs no
        additional bytes if it becomes shorter.
        """
        quota, rows = self._dispatcher.users.quotas.of(uid), self._dispatcher.store.of_user
        if own is not None:
            quota = replace(quota, max_queued=None)
            size -= len(self._dispatcher.store.job(own).spec_text)
            if size <= 0:
                return
        why = why_queued_too_much(
            quota,
            queued=0 if quota.max_queued is None else rows.waiting(uid),
            queue_bytes=0 if quota.queue_bytes is None else rows.text_bytes(uid),
            new_jobs=count,
            new_bytes=size,
        )
        if why is not None:
            raise Conflict(f"{'the job is' if count == 1 else 'the jobs are'} not queued: {why}")

    def _check_last(
        self, jobs: Sequence[_CheckedJob], uid: int, terms: QueueTerms, own: int | None = None
    ) -> None:
        """Check again, in the transaction, that limits, dependencies and directories allow these
        jobs. Other requests may have changed the queue since the first check.
        """
        count = count_jobs(job.parts.spec for job in jobs)
        self._refuse_over(uid, sum(len(job.parts.full_text) for job in jobs), count, own)
        self.dependable.refuse_hopeless(terms.after, uid)
        places: dict[str, JobSpec] = {}
        for job in jobs:
            if job.seen is None:
                continue
            spec, place = job.parts.spec, job.seen.place
            self._writers.refuse_used(spec, place, own)
            self._dispatcher.cleaner.refuse_being_removed(job.seen.named)
            if place is not None and places.setdefault(place, spec) is not spec:
                raise Conflict(
                    f"output_dir = {spec.output_dir}: another job of this request writes "
                    "there; name another directory"
                )

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        """Check a job without queueing it; see `JobRequests.check`."""
        self._checked_terms(terms, uid)
        text = (await _parts_of(spec)).full_text
        user = self._dispatcher.users.of(uid)
        seen = await self._check(spec, text, user, [])
        self._writers.refuse_used(spec, seen.place)
        foreseen = [*seen.notes, *(await self._memory_notes(spec, seen) if model else [])]
        if spec.engine == "script" or not (model or seen.asked):
            return CheckedJob(foreseen)
        found = await self._ask_interpreter(spec, user, show)
        self._rehearsed = [(user, text), *self._rehearsed[: _LAST_REHEARSED - 1]]
        return replace(found, notes=[*found.notes, *foreseen])

    async def _memory_notes(self, spec: JobSpec, seen: Survey) -> list[str]:
        """Return notes for the submitter: the job's estimated memory, and its attention kernel."""
        if seen.memory is None:
            return []
        snapshot = await self._dispatcher.machine.snapshot() if spec.device == "cuda" else None
        memory = MachineMemory(gpu_memory_for(need_of(spec), snapshot), memory_of_host())
        kernels = None if snapshot is None else kernels_of(spec, snapshot)
        return [note_of(spec, seen.memory, memory), *([] if kernels is None else [kernels])]

    async def _check(
        self, spec: JobSpec, text: str, user: JobUser | None, pythons: list[_CheckedPython]
    ) -> Survey:
        environment = job_environment(spec, user)
        for refusal in too_large(spec, environment):
            raise BadRequest(refusal)
        await asyncio.sleep(0)
        config, way = self._dispatcher.config, self._dispatcher.spawner.way
        if (refused := why_refused(spec.limits, config.limits, way)) is not None:
            raise BadRequest(refused)
        if (refused := why_job_refused(spec.notify, config.notify)) is not None:
            raise BadRequest(refused)
        gpus = spec.device == "cuda"
        snapshot = await self._dispatcher.machine.snapshot() if gpus else None
        if snapshot is not None and snapshot.gpus_silent:
            snapshot = None  # the memory is known when the driver responds: the job waits for that
        why = why_impossible(need_of(spec), snapshot, config.limits, memory_of_machine(config))
        uid = self._dispatcher.users.own if user is None else user.account.uid
        why = why or never_within(self._dispatcher.users.quotas.of(uid), need_of(spec))
        if why is not None:
            raise BadRequest(why)
        memory = MachineMemory(gpu_memory_for(need_of(spec), snapshot), memory_of_host())
        seen = survey_of(
            await self.read_files(spec, survey_job_files, spec, text, memory, user=user)
        )
        if seen.memory is not None and (why := why_never(spec, seen.memory, memory)):
            raise BadRequest(why)
        if spec.output_dir is not None:
            await self._note_earlier(spec)
        if seen.needs is not None:
            python = spec.python or sys.executable
            shared = {name: environment[name] for name in environment if name != INDEX_VARIABLE}
            if (python, shared, seen.needs) not in pythons:
                await self._check_python(python, environment, seen.needs, user)
                pythons.append((python, shared, seen.needs))
        return seen

    async def examples(self, spec: JobSpec, uid: int, show: int) -> CheckedJob:
        """Return the first `show` training examples of the job in the form that its model gets.

        Raises:
            ZerotoolsError: the examples cannot be shown.
        """
        return await self._ask_interpreter(spec, self._dispatcher.users.of(uid), show)

    async def _ask_interpreter(
        self, spec: JobSpec, user: JobUser | None, show: int = 0
    ) -> CheckedJob:
        python = spec.python or sys.executable
        return await self._rehearse(spec, python, job_environment(spec, user), user, show)

    async def _note_earlier(self, spec: JobSpec) -> None:
        """Reserve the resolved output directories of jobs that an earlier daemon queued."""
        by_uid: dict[int, dict[int, str]] = {}
        for job_id, path in self._writers.unrecorded().items():
            by_uid.setdefault(self._dispatcher.store.job(job_id).uid, {})[job_id] = path
        places: dict[int, str] = {}
        for uid, paths in by_uid.items():
            places |= zip(paths, await self._real(spec, uid, list(paths.values())), strict=True)
        if places:
            self._writers.record_directories(places, list(places.values()))

    async def _real(self, spec: JobSpec, uid: int, paths: list[str]) -> list[str]:
        user = self._dispatcher.users.for_files(uid)
        try:
            found = await self.read_files(spec, real_paths, paths, user=user)
        except Unavailable:
            if user is None:
                raise
            return paths  # another user's file systems must not delay this
        return [str(path) for path in found]

    async def read_files(
        self,
        spec: JobSpec,
        look: Callable[..., Any],
        *arguments: object,
        user: JobUser | None = None,
        seconds: float = LOOK_SECONDS,
        if_slow: str = "try again when the machine or the file system is less busy",
    ) -> Any:
        """Call `look(*arguments)` in the child process that reads the files of `spec`, as
        `user`, for at most `seconds`.

        Returns its result and raises its errors. Also raises BadRequest if the files may not be
        read. Raises Unavailable if the file system does not respond, or if reading takes too long.
        `if_slow` is the advice in the message if reading takes too long.
        """
        try:
            return await self._ask(seconds, look, *arguments, user=user)
        except TimeoutError as error:
            why = (
                ": a file system does not respond; check the paths that the job names: "
                f"{named_places(spec)}, and its data"
            )
            if isinstance(error, SlowCheck):
                why = f": their file systems respond, but there is much to read; {if_slow}"
            late = f"the files of the job could not be read within {seconds:g} s{why}"
            raise Unavailable(late) from None
        except OSError as error:
            who = "the daemon's user" if user is None else f"user {user.account.name}"
            where = error.filename or named_places(spec)
            why = f"{where}: {error.strerror or error}, for {who}"
            if is_transient(error):
                raise Unavailable(f"the files of the job cannot be read now: {why}") from None
            raise BadRequest(f"{why}; name another path, or let that user read it") from None


async def _parts_of(spec: JobSpec) -> JobParts:
    """Return the parts of the job `spec` that are stored in the queue.

    The parts of a large job are made in steps, so that other tasks run in between.
    """
    return await TimeSlice().run(JobParts.steps(spec))


async def _note_all(looked: Sequence[_CheckedJob], found: Iterable[JobRow]) -> list[JobRow]:
    """Pin the checkpoints that the jobs of an array need, and return the rows of these jobs.

    Other tasks run in between.
    """
    rows, time_slice = list[JobRow](), TimeSlice()
    left = zip(looked, found, strict=True)
    try:
        for one, job in left:
            one.coming.set_job_id(job.id)
            rows.append(job)
            await time_slice.pause_if_due()
    finally:
        for one, job in left:  # where the request was cancelled
            one.coming.set_job_id(job.id)
    return rows
