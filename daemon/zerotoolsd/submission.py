"""How a job is taken into the queue: what is looked at first, and what is looked at last."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import given_of, job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.accounts.job_user import JobUser
from zerotoolsd.accounts.name_service import user_name
from zerotoolsd.accounts.user_limits import why_queued_too_much
from zerotoolsd.admission.adoptable import look_at_process
from zerotoolsd.admission.dependable import DependableJobs, refuse_past
from zerotoolsd.admission.file_looks import clash_of, newest_step, newest_undamaged, real_paths
from zerotoolsd.admission.foreseen import MachineMemory, expected_text, note_of, why_never
from zerotoolsd.admission.interpreter import Needs, check_interpreter
from zerotoolsd.admission.program_room import too_large
from zerotoolsd.admission.rehearsal import rehearse
from zerotoolsd.admission.survey import Survey, survey, survey_of
from zerotoolsd.attempts.environment import job_environment
from zerotoolsd.attempts.job_limits import why_refused
from zerotoolsd.cleaning.looks import CLEANING_LOOKS
from zerotoolsd.dispatcher import Dispatcher
from zerotoolsd.looking.lookers import Ask
from zerotoolsd.notifying.addresses import why_job_refused
from zerotoolsd.queue.changes import NewJob
from zerotoolsd.queue.group_commit import GroupCommit, when_free
from zerotoolsd.queue.placement import largest_gpu, memory_of_host, memory_of_machine, need_of
from zerotoolsd.queue.rows import ArrayPlace, JobRow
from zerotoolsd.queue.scheduling.gpus import impossible
from zerotoolsd.queue.scheduling.user_room import never_within
from zerotoolsd.queue.values import json_of
from zerotoolsd.queue.writers import Writers
from zerotoolsd.queue_terms import PLAIN_TERMS, QueueTerms
from zerotoolsd.results.result_looks import RESULT_LOOKS
from zerotoolsd.rights.people import uid_of, who_is
from zerotoolsd.service.exchanged import CheckedJob
from zerotoolsd.service.refusals import Conflict, Unavailable
from zerotoolsd.supervisor.trouble import is_of_machine

LOOK_SECONDS = 10.0
"""How long a look at the files of a job may take at submit."""

_LAST_REHEARSED = 16
"""Jobs that their interpreter was asked about, and is not asked again when they are submitted."""

InterpreterCheck = Callable[[str, Mapping[str, str], Needs, JobUser | None], Awaitable[None]]
"""(interpreter, environment, what it must have, as whom); raises BadRequest."""
Rehearsal = Callable[[JobSpec, str, Mapping[str, str], JobUser | None, int], Awaitable[CheckedJob]]
"""(job, interpreter, environment, as whom, how many examples to show) -> notes on its model and
its data; raises BadRequest."""


_OWN_LOOKS = (
    *(clash_of, survey, newest_step, newest_undamaged, real_paths),
    *(who_is, uid_of, look_at_process),
)
LOOKS = {look.__name__: look for look in (*_OWN_LOOKS, *CLEANING_LOOKS, *RESULT_LOOKS)}
"""What is done by a process that looks."""


class Admittance:
    """Takes jobs into the dispatcher's queue; `ask` looks at files."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        check_python: InterpreterCheck = check_interpreter,
        rehearse: Rehearsal = rehearse,
        ask: Ask,
    ) -> None:
        self._dispatcher = dispatcher
        self._check_python = check_python
        self._rehearse = rehearse
        self._ask = ask
        self._group = GroupCommit(dispatcher.store)
        self._writers = Writers(dispatcher.store, dispatcher.jobs_dir)
        self.dependable = DependableJobs(dispatcher.store)
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
        """See `JobService.submit`; without `rehearse` its interpreter is not asked."""
        try:
            with self._group.coming():
                job, new = await self._submit(spec, uid, key, rehearse, terms)
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"the job cannot be queued: writing the queue failed: {error}"
            ) from None
        if new:
            self._dispatcher.expect(job)
        return job, new

    async def _submit(
        self, spec: JobSpec, uid: int, key: str | None, rehearse: bool, terms: QueueTerms
    ) -> tuple[JobRow, bool]:
        async with self._looked_at(spec, uid, key, rehearse, terms) as new:
            return await self._group.submit(new)

    async def submit_array(
        self,
        members: Sequence[tuple[JobSpec, str]],
        *,
        uid: int,
        key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> list[JobRow]:
        """See `JobService.submit_array`."""
        named = [
            (label or str(spec.name), spec.output_dir, spec.resume_from) for spec, label in members
        ]
        user = self._dispatcher.users.of(uid)
        if (problem := await self.look(members[0][0], clash_of, named, user=user)) is not None:
            raise BadRequest(problem)
        async with AsyncExitStack() as stack:
            jobs: list[NewJob] = []
            for index, (spec, label) in enumerate(members):
                first = index == 0
                came = self._looked_at(spec, uid, key if first else None, first, terms, key)
                new = await stack.enter_async_context(came)
                place = ArrayPlace(id=0, index=index, size=len(members), label=label)
                jobs.append(replace(new, array=place))

            async def commit() -> list[JobRow]:
                return self._dispatcher.store.submit_array(jobs)

            try:
                queued = await when_free(commit)
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"the jobs cannot be queued: writing the queue failed: {error}"
                ) from None
        self._dispatcher.announce()
        return queued

    @asynccontextmanager
    async def edited(self, job: JobRow, spec: JobSpec) -> AsyncIterator[NewJob]:
        """As `submit`, of what is to become of `job`; its caller changes it inside."""
        async with self._looked_at(spec, job.uid, None, True, PLAIN_TERMS, own=job.id) as new:
            yield new
            self._writers.forget(job.id)
            self._dispatcher.store.of_user.forget()
            new.queued(job)

    @asynccontextmanager
    async def _looked_at(
        self,
        spec: JobSpec,
        uid: int,
        key: str | None,
        rehearse: bool,
        terms: QueueTerms,
        known: str | None = None,
        own: int | None = None,
    ) -> AsyncIterator[NewJob]:
        """The job, to be queued inside. One that was queued under the key, or under `known`, is not
        looked at again: its files may be gone since."""
        tree = job_to_dict(spec)
        await asyncio.sleep(0)
        text = json.dumps(tree)
        await asyncio.sleep(0)  # what a large job takes is done in parts
        given = given_of(spec)
        await asyncio.sleep(0)
        texts = (json_of(tree), json_of(given))
        await asyncio.sleep(0)
        user = self._dispatcher.users.of(uid)
        with self._dispatcher.needed.coming(text, uid) as coming:
            seen: Survey | None = None
            if self._dispatcher.store.by_key(uid, known or key) is None:
                self._refuse_full()
                self._refuse_over(uid, len(text), own)
                terms = self._settled(terms, uid)
                seen = await self._check(spec, text, user)
                coming.seen(seen.named)
                if rehearse and seen.asked and (user, text) not in self._rehearsed:
                    await self._ask_interpreter(spec, user)

            def queued(job: JobRow) -> None:
                self._writers.note(job, seen.place if seen else None)
                coming.taken(job)

            # Nothing gives way between these and the commit: two submits may come at once.
            checked = partial(self._check_last, spec, seen, terms, uid, own, len(text))
            new = self._new_job(spec, tree, uid, key, checked, queued, terms)
            expected = expected_text(seen.memory if seen else None)
            yield replace(new, expected=expected, given=given, texts=texts)

    def _settled(self, terms: QueueTerms, uid: int) -> QueueTerms:
        """The terms as they come to count. Raises BadRequest, Forbidden."""
        classes = self._dispatcher.priority_classes
        self.dependable.refuse_hopeless(terms.after, uid)
        refuse_past(terms.begin, time.time())
        return replace(terms, priority=classes.priority_for(uid, terms.priority))

    def _new_job(
        self,
        spec: JobSpec,
        tree: Mapping[str, Any],
        uid: int,
        key: str | None,
        check: Callable[[], None],
        queued: Callable[[JobRow], None],
        terms: QueueTerms,
    ) -> NewJob:
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
            tree=tree,
            check=check,
            queued=queued,
        )

    def _refuse_full(self) -> None:
        """What room there is left is for what must be recorded of jobs that are queued."""
        if (why := self._dispatcher.store.room.why_full()) is not None:
            raise Unavailable(f"the job cannot be queued: {why}; make room there")

    def _refuse_over(self, uid: int, size: int, own: int | None) -> None:
        """Raises Conflict: the user has as much of the queue as one may have. A job that becomes
        another one (`own`) takes no place of a new one, and no bytes where it shrinks."""
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
            new_bytes=size,
        )
        if why is not None:
            raise Conflict(f"the job is not queued: {why}")

    def _check_last(
        self,
        spec: JobSpec,
        seen: Survey | None,
        terms: QueueTerms,
        uid: int,
        own: int | None,
        size: int,
    ) -> None:
        self._refuse_over(uid, size, own)
        self.dependable.refuse_hopeless(terms.after, uid)
        if seen is not None:
            self._writers.refuse_taken(spec, seen.place, own)
            self._dispatcher.cleaner.refuse_going(seen.named)

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        """See `JobService.check`."""
        self._settled(terms, uid)
        tree = job_to_dict(spec)
        await asyncio.sleep(0)
        text = json.dumps(tree)
        await asyncio.sleep(0)
        user = self._dispatcher.users.of(uid)
        seen = await self._check(spec, text, user)
        self._writers.refuse_taken(spec, seen.place)
        foreseen = [*seen.notes, *(await self._foreseen(spec, seen) if model else [])]
        if spec.engine == "script" or not (model or seen.asked):
            return CheckedJob(foreseen)
        found = await self._ask_interpreter(spec, user, show)
        self._rehearsed = [(user, text), *self._rehearsed[: _LAST_REHEARSED - 1]]
        return replace(found, notes=[*found.notes, *foreseen])

    async def _foreseen(self, spec: JobSpec, seen: Survey) -> list[str]:
        """What the job is foreseen to take of memory."""
        if seen.memory is None:
            return []
        snapshot = await self._dispatcher.machine.snapshot() if spec.device == "cuda" else None
        return [note_of(spec, seen.memory, MachineMemory(largest_gpu(snapshot), memory_of_host()))]

    async def _check(self, spec: JobSpec, text: str, user: JobUser | None) -> Survey:
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
            snapshot = None  # what there is shows when the driver answers: the job waits for that
        why = impossible(need_of(spec), snapshot, config.limits, memory_of_machine(config))
        uid = self._dispatcher.users.own if user is None else user.account.uid
        why = why or never_within(self._dispatcher.users.quotas.of(uid), need_of(spec))
        if why is not None:
            raise BadRequest(why)
        memory = MachineMemory(largest_gpu(snapshot), memory_of_host())
        seen = survey_of(await self.look(spec, survey, spec, text, memory, user=user))
        if seen.memory is not None and (why := why_never(spec, seen.memory, memory)):
            raise BadRequest(why)
        if spec.output_dir is not None:
            await self._note_earlier(spec)
        if seen.needs is not None:
            python = spec.python or sys.executable
            await self._check_python(python, environment, seen.needs, user)
        return seen

    async def _ask_interpreter(
        self, spec: JobSpec, user: JobUser | None, show: int = 0
    ) -> CheckedJob:
        python = spec.python or sys.executable
        return await self._rehearse(spec, python, job_environment(spec, user), user, show)

    async def _note_earlier(self, spec: JobSpec) -> None:
        """Where the jobs write that an earlier daemon took, links followed."""
        by_uid: dict[int, dict[int, str]] = {}
        for job_id, path in self._writers.unknown().items():
            by_uid.setdefault(self._dispatcher.store.job(job_id).uid, {})[job_id] = path
        places: dict[int, str] = {}
        for uid, paths in by_uid.items():
            places |= zip(paths, await self._real(spec, uid, list(paths.values())), strict=True)
        if places:
            self._writers.note_places(places, list(places.values()))

    async def _real(self, spec: JobSpec, uid: int, paths: list[str]) -> list[str]:
        user = self._dispatcher.users.for_files(uid)
        try:
            found = await self.look(spec, real_paths, paths, user=user)
        except Unavailable:
            if user is None:
                raise
            return paths  # nobody waits for the file systems of another user
        return [str(path) for path in found]

    async def look(
        self,
        spec: JobSpec,
        look: Callable[..., Any],
        *arguments: object,
        user: JobUser | None = None,
    ) -> Any:
        """The value of a look at the files of `spec`, as `user`. Raises what the look raises;
        BadRequest: they may not be read; Unavailable: they do not answer."""
        try:
            return await self._ask(LOOK_SECONDS, look, *arguments, user=user)
        except TimeoutError:
            raise Unavailable(
                f"the files of the job could not be read within {LOOK_SECONDS:g} s: a file system "
                f"does not answer; it names {_places(spec)}, and its data"
            ) from None
        except OSError as error:
            who = "the daemon's user" if user is None else user.account.name
            where = error.filename or _places(spec)
            why = f"{where}: {error.strerror or error}, for {who}"
            if is_of_machine(error):
                raise Unavailable(f"the files of the job cannot be read now: {why}") from None
            raise BadRequest(f"{why}; name another, or open it to that user") from None


def _places(spec: JobSpec) -> str:
    """The directories that the job names, for a message."""
    script = spec.script.directory if spec.engine == "script" else None
    named = {
        "script.directory": script,
        "model.path": spec.model.path,
        "output_dir": spec.output_dir,
        "resume_from": spec.resume_from,
        "python": spec.python,
    }
    return ", ".join(f"{key} = {path}" for key, path in named.items() if path) or "no directory"
