"""The requests of users in the form that the HTTP handlers call.

Each request performs one operation and returns its result as a view.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.states import STATES
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.interface.api_types import (
    AdoptedView,
    Adoption,
    ArrayView,
    ArrayWish,
    CheckedJob,
    Cleaned,
    CleanRequest,
    Conflict,
    Event,
    Forbidden,
    JobView,
    NotFound,
    Unavailable,
)
from zerotoolsd.interface.queue_terms import PLAIN_TERMS, JobEdit, QueueTerms
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.admission.dry_run import rehearse
from zerotoolsd.service.admission.interpreter_check import check_interpreter
from zerotoolsd.service.explanation import explain, holders_for, place_of, room_of
from zerotoolsd.service.operations.adopt import Adopting
from zerotoolsd.service.operations.change_jobs import (
    STATES_OF,
    ArrayChanges,
    ChangeJob,
    JobChanges,
    cancelling,
)
from zerotoolsd.service.operations.hold import HeldJobs
from zerotoolsd.service.operations.job_edits import JobEdits
from zerotoolsd.service.operations.job_results import JobExamples, JobResults
from zerotoolsd.service.operations.machine_state import Draining, MachineState
from zerotoolsd.service.operations.rerun import JobReruns
from zerotoolsd.service.operations.show_jobs import JobViews
from zerotoolsd.service.submission import InterpreterCheck, JobSubmission, Rehearsal
from zerotoolsd.users.account import NameLookupTimeout, UnknownAccount, user_name

EXPLAINING_EVENTS = 100
_LARGEST_ID = 2**63 - 1


class JobRequests:
    """All requests to the daemon, as its HTTP handlers call them.

    Every refusal is a `ZerotoolsError`. Requests are authorized before they come here
    (`http.api.authorize`); `uid` is the caller.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        check_python: InterpreterCheck = check_interpreter,
        rehearse: Rehearsal = rehearse,
        ask: Ask,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._submission = JobSubmission(
            dispatcher, check_python=check_python, rehearse=rehearse, ask=ask
        )
        self._waiting_jobs = JobChanges(dispatcher, self._find)
        self._held_jobs = HeldJobs(dispatcher, self._find)
        self._again = JobReruns(dispatcher, self._submission, self._find, self._check_uid)
        self._arrays = ArrayChanges(dispatcher, self._find)
        self._adopting = Adopting(dispatcher, self._submission, ask)
        self._draining = Draining(dispatcher)
        self._edits = JobEdits(dispatcher, self._submission, self._find)
        self._state = MachineState(dispatcher)
        self._views = JobViews(dispatcher, ask)
        self._results = JobResults(dispatcher, self._submission, self._find)
        self._examples = JobExamples(self._submission.examples)

    async def submit(
        self,
        spec: JobSpec,
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> tuple[JobView, bool]:
        """Queue a job; it is on the disk before this returns.

        Returns the job, and False if the idempotency key was used before and no job was queued.
        Raises BadRequest, Unsupported, Forbidden, Conflict (the key was used for another job file),
        Unavailable.
        """
        self._check_uid(uid)
        job, new = await self._submission.submit(spec, uid=uid, key=idempotency_key, terms=terms)
        return await self._views.of(job), new

    async def submit_array(
        self,
        members: Sequence[tuple[JobSpec, str]],
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> list[JobView]:
        """Submit an array: its jobs are queued together or not at all, each with a label.

        If the key was seen, returns the jobs queued then. Raises as `submit`.
        """
        self._check_uid(uid)
        jobs = await self._submission.submit_array(
            members, uid=uid, key=idempotency_key, terms=terms
        )
        return await self._views.of_all(jobs)

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        """Refuse a job that `submit` would refuse now; it queues no job.

        With `model`, also run the ranks' checks of the model, which takes seconds, and return notes
        on it and `show` examples.

        Raises BadRequest, Unsupported, Forbidden, Conflict, Unavailable.
        """
        self._check_uid(uid)
        return await self._submission.check(spec, uid=uid, model=model, show=show, terms=terms)

    def _check_uid(self, uid: int) -> None:
        users = self._dispatcher.users
        if uid not in (users.own, 0) and users.alone is not None:
            raise Forbidden(
                f"this daemon runs the jobs of uid {users.own}, and you are uid {uid} "
                f"({users.alone}); start a separate zerotoolsd"
            )
        try:
            users.of(uid)
        except NameLookupTimeout as error:
            raise Unavailable(f"{error}; ask again") from None
        except UnknownAccount as error:
            raise Forbidden(str(error)) from None

    async def jobs(
        self,
        *,
        states: Collection[str] | None = None,
        limit: int = 100,
        after: int | None = None,
        name: str | None = None,
        array: int | None = None,
        uid: int | None = None,
        whole: Callable[[int], bool] | None = None,
    ) -> list[JobView]:
        """Return jobs by descending id: only those in `states`, below `after`, of this `name` and
        this `uid`.

        For a job with a uid that is not `whole` (None: all are), only the public part is returned,
        and no file of it is opened. Raises BadRequest (an unknown state).
        """
        if unknown := sorted(set(states or ()) - set(STATES)):
            raise BadRequest(f"state = {unknown[0]}: must be one of {', '.join(STATES)}")
        wanted = None if states is None else list(states)
        below = None if after is None else min(after, _LARGEST_ID)
        return await self._views.listed(
            wanted, limit, below, name=name, array=array, uid=uid, whole=whole
        )

    async def job(self, job_id: int) -> JobView:
        """Return a job. Raises NotFound."""
        return await self._views.of(self._find(job_id))

    def owner(self, job_id: int) -> int:
        """Return the uid that submitted the job. Raises NotFound."""
        try:
            return self._store.of_user.owner(min(job_id, _LARGEST_ID))
        except KeyError:
            raise NotFound(f"job {job_id} does not exist") from None

    def _find(self, job_id: int) -> JobRow:
        try:
            return self._store.job(min(job_id, _LARGEST_ID))
        except KeyError:
            raise NotFound(f"job {job_id} does not exist") from None

    async def cancel(self, job_id: int, *, uid: int) -> JobView:
        """Request the end of a job; the state of the job shows when it has ended. A second call
        does nothing.

        Raises NotFound, Conflict (the job has ended).
        """
        job = self._find(job_id)

        async def cancel() -> None:
            self._dispatcher.cancel(self._find(job_id), user_name(uid))

        try:
            await when_free(cancel)
        except NotAllowed:
            raise Conflict(f"job {job_id} is over: it {_how(job.state)}") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job_id} cannot be cancelled: writing the queue failed: {error}"
            ) from None
        return await self._views.of(self._find(job_id))

    async def set_priority(self, job_id: int, priority: int, *, uid: int) -> JobView:
        """Set the priority of an unfinished job, for all its waits.

        Raises NotFound, Forbidden (also if its user may not have such a high one), Conflict (it is
        over), Unavailable.
        """
        await self._waiting_jobs.set_priority(job_id, priority, uid)
        return await self._views.of(self._find(job_id))

    async def hold(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Hold a job until its release: a waiting one does not start, a running one saves and ends.

        A second call has no effect. With `lose_steps`, also hold one not known to save.

        Raises NotFound, Forbidden, Conflict (it is over, being cancelled, held by the daemon, or
        would not continue from its last step), Unavailable.
        """
        await self._held_jobs.hold(job_id, uid, lose_steps=lose_steps)
        return await self._views.of(self._find(job_id))

    async def release(self, job_id: int, *, uid: int) -> JobView:
        """Let a held job start in its turn from its newest checkpoint, regardless of the holder.

        It no longer waits for jobs that did not end as required.

        Raises NotFound, Forbidden, Conflict (it is not held), Unavailable.
        """
        await self._held_jobs.release(job_id, uid)
        return await self._views.of(self._find(job_id))

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Pause a job (the older `hold`): a waiting job becomes `paused`.

        A second call has no effect. With `lose_steps`, also pause one not known to save.

        Raises NotFound, Conflict (it is over, being cancelled, held, on hold, or would not continue
        from its last step), Unavailable.
        """
        await self._held_jobs.pause(job_id, uid, lose_steps=lose_steps)
        return await self._views.of(self._find(job_id))

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        """Unpause a job (the older `release`), for jobs saved and held.

        Raises NotFound, Conflict (it is not paused), Unavailable.
        """
        await self._held_jobs.unpause(job_id, uid)
        return await self._views.of(self._find(job_id))

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """Resume a job (older: `retry` without `from_start`), or `release` one the daemon holds.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), BadRequest (it cannot run any more), Unavailable.
        """
        return await self._views.of(await self._again.resume(job_id, uid))

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        """Change a job before its first start; all checks of `submit` are repeated.

        Raises NotFound, Conflict (it has started, or was changed meanwhile), and the errors of
        `submit`.
        """
        return await self._views.of(await self._edits.edit(job_id, edit, uid))

    async def retry(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> JobView:
        """Queue an ended job once more under a new number.

        It starts from the beginning, in `output_dir` or the directory of the job file; or it
        continues in its directory from its newest checkpoint, if it has one.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), and the errors of `submit`.
        """
        again = self._again
        new = await (
            again.retry(job_id, uid, output_dir)
            if from_start
            else again.retry_from_newest(job_id, uid)
        )
        return await self._views.of(new)

    async def change_array(self, job_id: int, wish: ArrayWish, *, uid: int) -> ArrayView:
        """Apply an operation to all jobs of the array with this job, in one transaction.

        Raises NotFound, Conflict (it has no array, or no job of it allows the operation),
        Forbidden, Unavailable (no job was changed).
        """
        change = self._array_change(wish, uid)
        found = await self._arrays.change(job_id, change, STATES_OF.get(wish.do))
        jobs = await self._arrays.jobs(found.changed)
        return ArrayView(jobs=tuple(await self._views.of_all(jobs)), kept=found.kept)

    def _array_change(self, wish: ArrayWish, uid: int) -> ChangeJob:
        match wish.do:
            case "cancel":
                return cancelling(self._dispatcher, uid)
            case "hold":
                return self._held_jobs.holding(uid, lose_steps=wish.lose_steps)
            case "release":
                return self._held_jobs.releasing(uid)
            case "pause":
                return self._held_jobs.pausing(uid, lose_steps=wish.lose_steps)
            case "unpause":
                return self._held_jobs.unpausing(uid)
            case _:
                return self._waiting_jobs.prioritising(wish.priority or 0, uid)

    async def retry_array(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> list[JobView]:
        """Retry all jobs of the array with this job, as `retry` does: a new array, or nothing.

        Without `from_start`, jobs with all their steps done are left out.
        """
        members = await self._arrays.members(job_id)
        again = self._again
        jobs = await (
            again.retry_array(members, uid, output_dir)
            if from_start
            else again.retry_array_from_newest(members, uid)
        )
        return await self._views.of_all(jobs)

    async def adopt(self, wanted: Adoption, *, uid: int) -> AdoptedView:
        """Queue a job that watches a process of the user's, which continues unchanged.

        Raises BadRequest (the process does not exist, or belongs to another user), Conflict (it is
        watched already), and the errors of `submit`.
        """
        self._check_uid(uid)
        found = await self._adopting.adopt(wanted, uid)
        view = await self._views.of(self._find(found.job.id))
        return AdoptedView(job=view, below=found.below, gpu_uuids=found.gpu_uuids)

    async def drain(self, why: str | None, *, uid: int) -> dict[str, Any]:
        """Stop starting jobs, also after a restart; running jobs continue. Returns `health`'s tree.

        Raises Unavailable.
        """
        await self._draining.drain(why, uid)
        return self.health()

    async def undrain(self, *, uid: int) -> dict[str, Any]:
        """Start jobs again. Returns and raises as `drain`."""
        await self._draining.undrain(uid)
        return self.health()

    async def clean(self, request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        """Remove ended jobs, only of the uid `of` (None: all users): first files, then records.

        Raises BadRequest, Unavailable.
        """
        return await self._dispatcher.cleaner.clean(request, user_name(uid), of)

    async def events(self, since: int, wait: float) -> list[Event]:
        """Return up to 1,000 events with `seq > since`; wait up to `wait` seconds for the first."""
        since = min(since, _LARGEST_ID)
        changed = self._dispatcher.changed
        found = self._store.events(since)
        deadline = time.monotonic() + wait
        while not found and (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):  # wait_for would make a task for each client
                    await changed.wait()
            except TimeoutError:
                break
            changed = self._dispatcher.changed
            found = self._store.events(since)
        return found

    async def explain(self, job_id: int) -> dict[str, Any]:
        """Return why the job waits, was restarted or ended, in the format of `service.explanation`.

        Raises NotFound.
        """
        job = self._find(job_id)
        engine = self._dispatcher
        return explain(
            job,
            self._store.attempts(job.id),
            await self._views.of(job),
            self._store.events_of(job.id, EXPLAINING_EVENTS),
            notices=self._store.outbox.of_job(job.id),
            room=room_of(self._store, job),
            size=engine.growing.why(job),
            place=place_of(engine.placement, job.id),
            holders=holders_for(
                *(self._store, engine.placement, engine.machine.gpu_name, job.id),
                engine.users.whose,
            ),
        )

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """Return the reports of the job and of those that it continues.

        The tree has columns `steps` and `evaluations` of at most `points` points, `parts` (the
        reporter from each step on), `checkpoints` with their saves, the steps that were
        `not_finite`, and whether more may `follow`.

        Raises NotFound.
        """
        return await self._results.curves(job_id, points)

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return the present checkpoints of the job, in the format of
        `result_readers.checkpoint_tree`.

        Raises NotFound, BadRequest (the directory may not be read), Unavailable (it does not
        respond).
        """
        return await self._results.checkpoints(job_id)

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """Return `count` of the texts that an evaluation generated, from `first` on.

        The format is that of `service.result_readers`. Raises as `checkpoints`.
        """
        return await self._results.predictions(job_id, step, first, count)

    async def examples(self, job_id: int, show: int, wait: float) -> dict[str, Any]:
        """Return the first `show` examples of the job as its model sees them: `{"job", "ready",
        "notes", "sample", "problem"}`; `ready` is false if they take longer than `wait` seconds.

        Raises NotFound.
        """
        return await self._examples.read(self._find(job_id), show, wait)

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """Return the directory of one attempt (logs, `progress.jsonl`, `exit.json`). Raises
        NotFound."""
        attempts = self._store.attempts(self._find(job_id).id)
        if not 1 <= attempt <= len(attempts):
            raise NotFound(
                f"job {job_id} has no attempt {attempt}; attempts until now: {len(attempts)}"
            )
        return Path(attempts[attempt - 1].run_dir)

    async def machine(self) -> dict[str, Any]:
        """Return the machine's state.

        It is `{"snapshot": ... | None, "leases": [{"gpu_uuid", "job_id", "attempt", "held_by",
        "bytes", "uid"}], ...}`; `bytes` of the GPU's memory, None: all of it.
        """
        return await self._state.machine()

    async def metrics(self, *, openmetrics: bool) -> str:
        """Return the metrics of the daemon and the machine, as text; they name no single job."""
        return await self._state.metrics(openmetrics=openmetrics)

    async def history(self, seconds: int, points: int) -> dict[str, Any]:
        """Return the history of the last so many seconds, in columns.

        It is `{"step_seconds", "times", "series": {name: {"mean", "most"}}, "trouble"}`, with the
        series of `zerotoolsd.monitoring.history_recorder`.
        """
        return (await self._dispatcher.history.read(seconds, points)).to_json()

    def peaks(self, job_id: int | None, limit: int) -> list[dict[str, Any]]:
        """Return the peaks of attempts, the newest first, in the format of
        `history_file.AttemptPeak`."""
        return [each.to_json() for each in self._dispatcher.history.peaks(job_id, limit)]

    def shares(self) -> dict[str, Any]:
        """Return the users' shares of the GPUs; users with jobs that start first are at the top.

        The tree is `{"half_life_seconds", "fair", "users": [...]}`. Each user has `uid`, `name`,
        `weight`, `share` and `used` (parts of 1), `gpu_hours` (which decay), `gpu_hours_in_all`,
        `factor`, the `gpus` that jobs hold now, and how many jobs are `waiting` for GPUs.
        """
        return self._state.shares()

    def health(self) -> dict[str, Any]:
        """Return `{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event",
        "drain"}`.

        `drain` is `{"since", "uid", "why"}`, or None.
        """
        return self._state.health()


def _how(state: str) -> str:
    return {"cancelled": "was cancelled already"}.get(state, state)
