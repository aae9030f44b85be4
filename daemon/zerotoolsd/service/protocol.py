"""The protocol between the HTTP handlers and the daemon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.api_types import (
    AdoptedView,
    Adoption,
    ArrayView,
    ArrayWish,
    CheckedJob,
    Cleaned,
    CleanRequest,
    Event,
    JobView,
)
from zerotoolsd.interface.queue_terms import PLAIN_TERMS, JobEdit, QueueTerms


class JobService(Protocol):
    """The daemon, as its HTTP handlers see it. Every refusal is a `ZerotoolsError`.

    Requests are authorized before they come here (`http.api.authorization`); `uid` is the caller.
    """

    async def submit(
        self,
        spec: JobSpec,
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> tuple[JobView, bool]:
        """Queue a job, durably, before this returns. False: the key was seen, nothing was queued.

        Raises BadRequest, Unsupported, Forbidden, Conflict (the key named another job spec),
        Unavailable.
        """

    async def submit_array(
        self,
        members: Sequence[tuple[JobSpec, str]],
        *,
        uid: int,
        idempotency_key: str | None,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> list[JobView]:
        """Submit an array: its jobs are queued together or not at all, each with its own label.

        If the key was seen, returns the jobs that were queued then. Raises as `submit`.
        """

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        """Refuse a job that `submit` would refuse now; nothing is queued.

        With `model`, also run the ranks' checks of the model, which takes seconds, and return notes
        on it and `show` examples.

        Raises BadRequest, Unsupported, Forbidden, Conflict, Unavailable.
        """

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

    async def job(self, job_id: int) -> JobView:
        """Return a job. Raises NotFound."""

    def owner(self, job_id: int) -> int:
        """Return the uid that submitted the job. Raises NotFound."""

    async def cancel(self, job_id: int, *, uid: int) -> JobView:
        """Ask for the job's end; it is over when its state is. Twice is harmless.

        Raises NotFound, Conflict (it is over).
        """

    async def set_priority(self, job_id: int, priority: int, *, uid: int) -> JobView:
        """Set the priority of a job that is not over, for all its waits.

        Raises NotFound, Forbidden (also if its user may not have such a high one), Conflict (it is
        over), Unavailable.
        """

    async def hold(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Hold a job until its release: a waiting one does not start, a running one saves and ends.

        A second call has no effect. With `lose_steps`, also hold one that is not known to save.

        Raises NotFound, Forbidden, Conflict (it is over, being cancelled, held by the daemon, or
        would not continue from where it is), Unavailable.
        """

    async def release(self, job_id: int, *, uid: int) -> JobView:
        """Let a held job start in its turn from its newest checkpoint, regardless of the holder.

        It no longer waits for jobs that did not end in the required way.

        Raises NotFound, Forbidden, Conflict (it is not held), Unavailable.
        """

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Pause a job (the older `hold`): a waiting job becomes `paused`.

        A second call has no effect. With `lose_steps`, also pause one that is not known to save.

        Raises NotFound, Conflict (it is over, being cancelled, held, on hold, or would not continue
        from where it is), Unavailable.
        """

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        """Unpause a job (the older `release`), for jobs that were saved and held.

        Raises NotFound, Conflict (it is not paused), Unavailable.
        """

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """Resume a job (older: `retry` without `from_start`), or `release` one the daemon holds.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), BadRequest (it cannot run any more), Unavailable.
        """

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        """Change a job that has never started; all checks of `submit` are repeated.

        Raises NotFound, Conflict (it has started, or was changed meanwhile), and the errors of
        `submit`.
        """

    async def retry(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> JobView:
        """Queue an ended job once more, as a new job.

        It starts from the beginning, in `output_dir` or the directory of the job file; or it
        continues in its directory from its newest checkpoint, if it has one.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), and the errors of `submit`.
        """

    async def change_array(self, job_id: int, wish: ArrayWish, *, uid: int) -> ArrayView:
        """Apply an operation to all jobs of the array with this job, in one transaction.

        Raises NotFound, Conflict (it has no array, or no job of it allows the operation),
        Forbidden, Unavailable (nothing was changed).
        """

    async def retry_array(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> list[JobView]:
        """Retry all jobs of the array with this job, as `retry` does: a new array, or nothing.

        Without `from_start`, jobs that have done all their steps are left out.
        """

    async def adopt(self, wanted: Adoption, *, uid: int) -> AdoptedView:
        """Queue a job that watches a process of the user's, which continues unchanged.

        Raises BadRequest (the process does not exist, or belongs to another user), Conflict (it is
        watched already), and the errors of `submit`.
        """

    async def drain(self, why: str | None, *, uid: int) -> dict[str, Any]:
        """Stop starting jobs, also after a restart; running jobs continue. Returns `health`'s tree.

        Raises Unavailable.
        """

    async def undrain(self, *, uid: int) -> dict[str, Any]:
        """Start jobs again. As `drain`."""

    async def clean(self, request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        """Remove ended jobs, only of the uid `of` (None: all users): first files, then records.

        Raises BadRequest, Unavailable.
        """

    async def events(self, since: int, wait: float) -> list[Event]:
        """Return up to 1,000 events with `seq > since`; wait up to `wait` seconds for the first."""

    async def explain(self, job_id: int) -> dict[str, Any]:
        """Return why the job waits, was restarted or ended, as `explain.explanation` formats it.

        Raises NotFound.
        """

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """Return the reports of the job and of those that it continues.

        The tree has columns `steps` and `evaluations` of at most `points` points, `parts` (the
        reporter from each step on), `checkpoints` with their saves, the steps that were
        `not_finite`, and whether more may `follow`.

        Raises NotFound.
        """

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        """Return the current checkpoints of the job, in the format of `results.checkpoint_tree`.

        Raises NotFound, BadRequest (it may not be read), Unavailable (it does not respond).
        """

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """Return `count` of the texts that an evaluation generated, from `first` on.

        The format is that of `service.results.prediction_rows`. Raises as `checkpoints`.
        """

    async def examples(self, job_id: int, show: int, wait: float) -> dict[str, Any]:
        """Return the first `show` examples of the job as its model sees them: `{"job", "ready",
        "notes", "sample", "problem"}`; `ready` is false where they take longer than `wait` seconds.

        Raises NotFound.
        """

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """Return the directory of one attempt (logs, `progress.jsonl`, `exit.json`). Raises
        NotFound."""

    async def machine(self) -> dict[str, Any]:
        """Return the machine's state.

        It is `{"snapshot": ... | None, "leases": [{"gpu_uuid", "job_id", "attempt", "held_by",
        "bytes", "uid"}], ...}`; `bytes` of the GPU's memory, None: all of it.
        """

    async def history(self, seconds: int, points: int) -> dict[str, Any]:
        """Return the history of the last so many seconds, in columns.

        It is `{"step_seconds", "times", "series": {name: {"mean", "most"}}, "trouble"}`, with the
        series of `zerotoolsd.monitoring.history.series`.
        """

    def peaks(self, job_id: int | None, limit: int) -> list[dict[str, Any]]:
        """Return the peaks of attempts, the newest first, in the format of
        `history_file.AttemptPeak`."""

    def shares(self) -> dict[str, Any]:
        """Return the users' shares, the users that go first at the top.

        It is `{"half_life_seconds", "fair", "users": [...]}`. Each user has `uid`, `name`,
        `weight`, `share` and `used` (parts of 1), `gpu_hours` (which decay), `gpu_hours_in_all`,
        `factor`, the `gpus` that jobs hold now, and how many jobs are `waiting` for GPUs.
        """

    async def metrics(self, *, openmetrics: bool) -> str:
        """Return the metrics of the daemon and the machine, as text; they name no single job."""

    def health(self) -> dict[str, Any]:
        """Return `{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event",
        "drain"}`.

        The last is `{"since", "uid", "why"}`, or None.
        """
