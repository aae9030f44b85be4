"""The methods that the HTTP handlers call, one for each request of a user.

Each method performs one operation and returns its result as a view.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import STATES, predicate
from zerotoolsd.dispatch.dispatcher import Dispatcher
from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.interface.api_types import (
    AdoptedView,
    Adoption,
    ArrayRequest,
    ArrayView,
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
from zerotoolsd.interface.start_conditions import PLAIN_TERMS, JobEdit, QueueTerms
from zerotoolsd.queue.group_commit import when_free
from zerotoolsd.queue.lifecycle import NotAllowed
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.admission.interpreter_check import check_interpreter
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks
from zerotoolsd.service.explain_job import Waiting, explain_job, holders_for, place_of, yields_about
from zerotoolsd.service.operations.adopt import Adopting
from zerotoolsd.service.operations.cached_job_views import JobViews
from zerotoolsd.service.operations.curves_checkpoints_predictions import JobExamples, JobResults
from zerotoolsd.service.operations.hold import HeldJobs
from zerotoolsd.service.operations.job_edits import JobEdits
from zerotoolsd.service.operations.machine_state_and_drain import Draining, MachineState
from zerotoolsd.service.operations.priority_and_array_changes import (
    STATES_OF,
    ArrayChanges,
    ChangeJob,
    JobChanges,
    cancel_function,
)
from zerotoolsd.service.operations.rerun import JobReruns
from zerotoolsd.service.submission import InterpreterCheck, JobSubmission, Rehearsal
from zerotoolsd.users.account import NameLookupTimeout, UnknownAccount, user_name

EXPLAINING_EVENTS = 100
_LARGEST_ID = 2**63 - 1


class JobRequests:
    """One method for each request to the daemon. The HTTP handlers call these methods.

    Every refusal is raised as a `ZerotoolsError`. Requests are authorized before these methods are
    called (`http.api.authorize`). `uid` identifies the user who sent the request.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        check_python: InterpreterCheck = check_interpreter,
        rehearse: Rehearsal = run_rank_checks,
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
        """Queue a job. The job is on the disk before this method returns.

        Returns the view of the job, and whether it is new. It is not new if an earlier request with
        the same idempotency key has queued it. Raises BadRequest, Unsupported, Forbidden, Conflict
        (the key was used for another job file), Unavailable.
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
        """Submit an array of jobs: all jobs are queued, or no job. `members` has each job with its
        label.

        If an earlier request had this idempotency key, return the jobs that the earlier request
        queued. Raises the same errors as `submit`.
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
        """Check a job as `submit` does, without queueing it. Return notes on the job.

        With `model`, also run the checks that the ranks do at their start, which takes seconds. The
        result then includes the notes of these checks, and `show` examples of the training data.

        Raises BadRequest, Unsupported, Forbidden, Conflict, Unavailable.
        """
        self._check_uid(uid)
        return await self._submission.check(spec, uid=uid, model=model, show=show, terms=terms)

    def _check_uid(self, uid: int) -> None:
        users = self._dispatcher.users
        if uid not in (users.own, 0) and users.alone is not None:
            raise Forbidden(
                f"this daemon runs only jobs of uid {users.own}, but you are uid {uid} "
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
        by_priority: bool = False,
    ) -> list[JobView]:
        """Return up to `limit` jobs, the highest id first. With `by_priority`, the highest priority
        is first, and of equal priorities the lowest id.

        Args:
            states, after, name, array, uid: select the jobs that are in one of `states`, follow the
                job `after` in this order, have this name, are in this array, and belong to this
                user. None: no condition.
            whole: takes the uid of a job's owner, and returns whether the caller may see everything
                of that job. None: the caller may see everything of all jobs. Of a job that the
                caller may not see, only the public part is returned, and none of its files is
                opened.

        Raises BadRequest (an unknown state).
        """
        if unknown := sorted(set(states or ()) - set(STATES)):
            raise BadRequest(f"state = {unknown[0]}: must be one of {', '.join(STATES)}")
        wanted = None if states is None else list(states)
        after = None if after is None else min(after, _LARGEST_ID)
        return await self._views.listed(
            wanted,
            limit,
            after,
            name=name,
            array=array,
            uid=uid,
            whole=whole,
            by_priority=by_priority,
        )

    async def job(self, job_id: int) -> JobView:
        """Return the view of job `job_id`. Raises NotFound."""
        return await self._views.of(self._find(job_id))

    def owner(self, job_id: int) -> int:
        """Return the uid of the user who submitted the job. Raises NotFound."""
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
        """Request that a job ends. Return its view, in which the job may still be running.

        A second call only repeats the request. Raises NotFound, Conflict (the job has ended),
        Unavailable.
        """
        job = self._find(job_id)

        async def cancel() -> None:
            self._dispatcher.cancel(self._find(job_id), user_name(uid))

        try:
            await when_free(cancel)
        except NotAllowed:
            raise Conflict(f"job {job_id} {predicate(job.state)} already") from None
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"job {job_id} cannot be cancelled: writing the queue failed: {error}"
            ) from None
        return await self._views.of(self._find(job_id))

    async def set_priority(self, job_id: int, priority: int, *, uid: int) -> JobView:
        """Set the priority of an unfinished job. It applies whenever the job waits from now on.

        Raises NotFound, Forbidden (also if the user may not use such a high priority), Conflict
        (the job has ended), Unavailable.
        """
        await self._waiting_jobs.set_priority(job_id, priority, uid)
        return await self._views.of(self._find(job_id))

    async def hold(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Hold a job until it is released. A waiting job does not start; a running job saves, and
        its attempt ends.

        A second call has no effect. With `lose_steps`, also hold a running job that may not be able
        to save.

        Raises NotFound, Forbidden, Conflict (the job has ended, is being cancelled, is held by the
        daemon, or would not continue from its last step), Unavailable.
        """
        await self._held_jobs.hold(job_id, uid, lose_steps=lose_steps)
        return await self._views.of(self._find(job_id))

    async def release(self, job_id: int, *, uid: int) -> JobView:
        """Release a held job: it waits for its resources again and resumes from its newest
        checkpoint.

        The job may have been held by any user or by the daemon. Dependencies that can no longer be
        met are ignored from now on.

        Raises NotFound, Forbidden, Conflict (the job is not held), Unavailable.
        """
        await self._held_jobs.release(job_id, uid)
        return await self._views.of(self._find(job_id))

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Pause a job (an older form of `hold`): the state of a waiting job becomes `paused`.

        A second call has no effect. With `lose_steps`, also pause a running job that may not be
        able to save.

        Raises NotFound, Conflict (the job has ended, is being cancelled, is held, is on hold, or
        would not continue from its last step), Unavailable.
        """
        await self._held_jobs.pause(job_id, uid, lose_steps=lose_steps)
        return await self._views.of(self._find(job_id))

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        """Continue a paused job (an older form of `release`).

        Raises NotFound, Conflict (the job is not paused), Unavailable.
        """
        await self._held_jobs.unpause(job_id, uid)
        return await self._views.of(self._find(job_id))

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """Resume an ended job (an older form of `retry` without `from_start`).

        A job that the daemon holds is released instead. Raises NotFound, Forbidden, Conflict (the
        job has not ended, or another job writes to its directory), BadRequest (the job cannot run
        any more), Unavailable.
        """
        return await self._views.of(await self._again.resume(job_id, uid))

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        """Change the job file of a job before its first start; all checks of `submit` are repeated.

        Raises NotFound, Conflict (the job has started, or was changed at the same time), and the
        errors of `submit`.
        """
        return await self._views.of(await self._edits.edit(job_id, edit, uid))

    async def retry(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> JobView:
        """Queue an ended job once more, under a new number.

        With `from_start`, the new job begins at step 0, in `output_dir` or the directory in the job
        file. Otherwise it continues in the directory of the ended job, from its newest checkpoint
        if there is one.

        Raises NotFound, Forbidden, Conflict (the job has not ended, or another job writes to its
        directory), and the errors of `submit`.
        """
        again = self._again
        new = await (
            again.retry(job_id, uid, output_dir)
            if from_start
            else again.retry_from_newest(job_id, uid)
        )
        return await self._views.of(new)

    async def change_array(self, job_id: int, request: ArrayRequest, *, uid: int) -> ArrayView:
        """Apply the operation `request` to all jobs of the array that contains job `job_id`.

        Returns the changed jobs, and the unchanged jobs with the reasons. Raises NotFound, Conflict
        (the job is in no array, or the operation is not possible for any of its jobs), Forbidden,
        Unavailable (the message says how many jobs were changed).
        """
        change = self._array_change(request, uid)
        found = await self._arrays.change(job_id, change, STATES_OF.get(request.do))
        jobs = await self._arrays.jobs(found.changed)
        return ArrayView(jobs=tuple(await self._views.of_all(jobs)), kept=found.kept)

    def _array_change(self, request: ArrayRequest, uid: int) -> ChangeJob:
        match request.do:
            case "cancel":
                return cancel_function(self._dispatcher, uid)
            case "hold":
                return self._held_jobs.holding(uid, lose_steps=request.lose_steps)
            case "release":
                return self._held_jobs.releasing(uid)
            case "pause":
                return self._held_jobs.pausing(uid, lose_steps=request.lose_steps)
            case "unpause":
                return self._held_jobs.unpausing(uid)
            case _:
                return self._waiting_jobs.prioritising(request.priority or 0, uid)

    async def retry_array(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> list[JobView]:
        """Retry all jobs of the array that contains job `job_id`, as a new array; see `retry`.

        If one of the jobs cannot be retried, no job is retried. Without `from_start`, jobs with all
        their steps done are left out.
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
        """Queue a job that watches a running process of the user; the process itself continues
        unchanged.

        Raises BadRequest (the process does not exist, or belongs to another user), Conflict
        (another job watches it already), and the errors of `submit`.
        """
        self._check_uid(uid)
        found = await self._adopting.adopt(wanted, uid)
        view = await self._views.of(self._find(found.job.id))
        return AdoptedView(job=view, below=found.below, gpu_uuids=found.gpu_uuids)

    async def drain(self, why: str | None, *, uid: int) -> dict[str, Any]:
        """Stop starting jobs, also after a restart of the daemon; running jobs continue.

        `why` is shown to users as the reason. Returns the same object as `health`. Raises
        Unavailable.
        """
        await self._draining.drain(why, uid)
        return self.health()

    async def test_notices(
        self, places: Collection[str], kinds: Collection[str]
    ) -> list[dict[str, Any]]:
        """Send examples of notices to the configured destinations, and return the answers.

        `places` and `kinds` select destinations and kinds of notices. Without `places`, all
        destinations get examples. Without `kinds`, each destination gets the kinds in its
        configured list. The result has one object for each example, with `place`, `service`,
        `notice`, `delivered` (whether the destination accepted it) and `answer` (the words of the
        destination). Raises BadRequest.
        """
        return await self._dispatcher.notifier.try_destinations(places, kinds)

    async def undrain(self, *, uid: int) -> dict[str, Any]:
        """End the drain, so that waiting jobs may start. Returns and raises the same as `drain`."""
        await self._draining.undrain(uid)
        return self.health()

    async def clean(self, request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        """Remove ended jobs of the user `of` (None: of all users). The files of a job are removed
        before its record.

        Raises BadRequest, Unavailable.
        """
        return await self._dispatcher.cleaner.clean(request, user_name(uid), of)

    async def events(self, since: int, wait: float) -> list[Event]:
        """Return up to 1,000 events with `seq > since`, in order.

        If there is no such event yet, wait up to `wait` seconds for the first one.
        """
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
        """Return why the job waits, was restarted or ended, in the format of `service.explain_job`.

        Raises NotFound.
        """
        job = self._find(job_id)
        engine = self._dispatcher
        return explain_job(
            job,
            self._store.attempts(job.id),
            await self._views.of(job),
            self._store.events_of(job.id, EXPLAINING_EVENTS),
            notices=self._store.outbox.of_job(job.id),
            size=engine.growing.why(job),
            waiting=Waiting(
                place=place_of(engine.placement, job.id),
                holders=holders_for(
                    *(self._store, engine.placement, engine.machine.gpu_name, job.id),
                    engine.users.owner_name,
                ),
                yields=yields_about(self._store, job),
            ),
        )

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """Return the training curves of the job and of the earlier jobs that it continues.

        The result has these keys:

            steps, evaluations, scores: columns of at most `points` points.
            parts: for each range of steps, the attempt that reported it.
            checkpoints: the steps and times at which checkpoints were saved.
            not_finite: the steps with a value that is not finite.
            sampled: whether some steps were left out.
            follow: the attempt and the file offset from which later reports can be read.

        Raises NotFound.
        """
        return await self._results.curves(job_id, points)

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return the checkpoints that the job has now, in the format of
        `read_checkpoints_and_predictions.checkpoint_tree`.

        Raises NotFound, BadRequest (the directory may not be read), Unavailable (the file system
        does not respond).
        """
        return await self._results.checkpoints(job_id)

    async def picture(self, job_id: int, step: int) -> str:
        """Return an HTML page that draws the checkpoint of a step, as one file.

        Raises the same errors as `checkpoints`, BadFile and Unsupported.
        """
        return await self._results.picture(job_id, step)

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """Return `count` texts, from number `first` on, that the evaluation at `step` generated.

        If `step` is None, the newest step with predictions is used. The format is that of
        `read_checkpoints_and_predictions.prediction_rows`. Raises the same errors as `checkpoints`.
        """
        return await self._results.predictions(job_id, step, first, count)

    async def examples(self, job_id: int, show: int, wait: float) -> dict[str, Any]:
        """Return the first `show` training examples of the job, as its model sees them.

        The keys are `job`, `ready`, `notes`, `sample` and `problem`. `ready` is False if the
        examples take longer than `wait` seconds. Raises NotFound.
        """
        return await self._examples.read(self._find(job_id), show, wait)

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """Return the directory of an attempt (logs, `progress.jsonl`, ...). Raises NotFound."""
        attempts = self._store.attempts(self._find(job_id).id)
        if not 1 <= attempt <= len(attempts):
            raise NotFound(
                f"job {job_id} has no attempt {attempt}; attempts until now: {len(attempts)}"
            )
        return Path(attempts[attempt - 1].run_dir)

    async def machine(self) -> dict[str, Any]:
        """Return the state of the machine and its GPUs.

        The result is `{"snapshot": ... | None, "leases": [{"gpu_uuid", "job_id", "attempt",
        "held_by", "bytes", "uid"}], ...}`. `bytes` is the GPU memory of the lease; None: the whole
        GPU.
        """
        return await self._state.machine()

    async def metrics(self, *, openmetrics: bool) -> str:
        """Return the metrics of the daemon and the machine as text for Prometheus.

        With `openmetrics`, the text is in the OpenMetrics format. No metric names a single job.
        """
        return await self._state.metrics(openmetrics=openmetrics)

    async def history(self, seconds: int, points: int) -> dict[str, Any]:
        """Return the use of the machine in the last `seconds`, at `points` + 1 times or fewer.

        The result is `{"step_seconds", "times", "series": {name: {"mean", "most"}}, "trouble"}`.
        `mean` and `most` are lists with the average and the maximum in the interval after each of
        the `times`. `trouble` is the reason why new measurements are missing, or None. The names of
        the series are listed in `zerotoolsd.monitoring.history_recorder`.
        """
        return (await self._dispatcher.history.read(seconds, points)).to_json()

    def peaks(self, job_id: int | None, limit: int) -> list[dict[str, Any]]:
        """Return the peak memory of attempts of job `job_id` (None: of all jobs), the newest first.

        The result has at most `limit` entries, in the format of `history_file.AttemptPeak`.
        """
        return [each.to_json() for each in self._dispatcher.history.peaks(job_id, limit)]

    def shares(self) -> dict[str, Any]:
        """Return each user's share of the GPUs, in the order in which the users' jobs start.

        The result is `{"half_life_seconds", "fair", "users": [...]}`. Each user has `uid`, `name`,
        `weight`, `share` and `used` (fractions of 1), `gpu_hours` (older hours count less),
        `gpu_hours_in_all`, `factor`, `gpus` (the number that jobs hold now), and `waiting` (the
        number of jobs that wait for GPUs).
        """
        return self._state.shares()

    def health(self) -> dict[str, Any]:
        """Return the state of the daemon.

        The result is
        `{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event", "drain"}`.
        `drain` is `{"since", "uid", "user", "why"}`; None if jobs may start.
        """
        return self._state.health()
