"""What the HTTP handlers ask of the daemon: one protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.queue_terms import PLAIN_TERMS, JobEdit, QueueTerms
from zerotoolsd.service.exchanged import (
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


class JobService(Protocol):
    """The daemon, as its HTTP handlers see it. Every refusal is a `ZerotoolsError`.

    Whether a user may ask for something is decided before it is asked here (`api.asking`); `uid` is
    who asks.
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
        """As `submit`, of jobs that are queued together or not at all, each with what it has of its
        own; where the key was seen, what was queued then."""

    async def check(
        self,
        spec: JobSpec,
        *,
        uid: int,
        model: bool = False,
        show: int = 0,
        terms: QueueTerms = PLAIN_TERMS,
    ) -> CheckedJob:
        """Refuse what `submit` would refuse now; nothing is queued. With `model`, also what the
        ranks would refuse of the model, which takes seconds, notes on it, and `show` examples.

        Raises BadRequest, Unsupported, Forbidden, Conflict, Unavailable.
        """

    async def jobs(
        self,
        *,
        state: str | None = None,
        limit: int = 100,
        after: int | None = None,
        name: str | None = None,
        array: int | None = None,
        uid: int | None = None,
        whole: Callable[[int], bool] | None = None,
    ) -> list[JobView]:
        """Jobs by descending id, those below `after` only, and those of this `name` and this `uid`.
        Of a job whose uid is not `whole` (None: all are) there is only what everybody may see: no
        file of such a job is opened. Raises BadRequest (unknown state)."""

    async def job(self, job_id: int) -> JobView:
        """Raises NotFound."""

    def owner(self, job_id: int) -> int:
        """The uid that submitted it. Raises NotFound."""

    async def cancel(self, job_id: int, *, uid: int) -> JobView:
        """Ask for the job's end; it is over when its state is. Twice is harmless.

        Raises NotFound, Conflict (it is over).
        """

    async def set_priority(self, job_id: int, priority: int, *, uid: int) -> JobView:
        """Let a job that is not over wait with this priority, whenever it does.

        Raises NotFound, Forbidden (also where its user may not have so high a one), Conflict (it is
        over), Unavailable.
        """

    async def hold(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Hold a job until it is released: one that waits does not start, one that runs saves and
        ends its attempt. Twice is harmless. With `lose_steps` also one that is not known to save.

        Raises NotFound, Forbidden, Conflict (it is over, being cancelled, held by the daemon, or
        would not continue from where it is), Unavailable.
        """

    async def release(self, job_id: int, *, uid: int) -> JobView:
        """Let a held job start when its turn comes, whoever held it, from its newest checkpoint. It
        waits no more for jobs that ended otherwise than they had to.

        Raises NotFound, Forbidden, Conflict (it is not held), Unavailable.
        """

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """The older `hold`: a job that waits is `paused`. Twice is harmless. With `lose_steps` also
        one that is not known to save.

        Raises NotFound, Conflict (it is over, being cancelled, held, on hold, or would not go on
        where it is), Unavailable.
        """

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        """The older `release`, of jobs that were saved and held.

        Raises NotFound, Conflict (it is not paused), Unavailable.
        """

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """The older `retry` without `from_start`; and `release`, if the daemon holds the job.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), BadRequest (it cannot run any more), Unavailable.
        """

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        """Change a job that has never started; all that `submit` looks at is looked at again.

        Raises NotFound, Conflict (it has started, or was changed meanwhile), and as `submit`.
        """

    async def retry(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> JobView:
        """Queue a job that is over once more, as a new job: from the start, in `output_dir` or
        where the job file said; or in its directory from its newest checkpoint, if it has one.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), and what `submit` does.
        """

    async def change_array(self, job_id: int, wish: ArrayWish, *, uid: int) -> ArrayView:
        """Do the same to all jobs of the array that this one is of, in one transaction.

        Raises NotFound, Conflict (it is of none, or none of its jobs allows it), Forbidden,
        Unavailable (nothing was changed).
        """

    async def retry_array(
        self, job_id: int, *, uid: int, output_dir: str | None = None, from_start: bool = True
    ) -> list[JobView]:
        """As `retry`, of all jobs of the array that this one is of: a new array, or nothing.

        Without `from_start`, jobs that have done all their steps are left out.
        """

    async def adopt(self, wanted: Adoption, *, uid: int) -> AdoptedView:
        """Queue a job that watches a process of the user's, which goes on as it is.

        Raises BadRequest (there is no such process, or it is another user's), Conflict (it is
        watched already), and what `submit` does.
        """

    async def drain(self, why: str | None, *, uid: int) -> dict[str, Any]:
        """Start nothing any more, not even after a restart; what runs goes on. As `health`.

        Raises Unavailable.
        """

    async def undrain(self, *, uid: int) -> dict[str, Any]:
        """Start jobs again. As `drain`."""

    async def clean(self, request: CleanRequest, *, uid: int, of: int | None) -> Cleaned:
        """Remove jobs that are over, of the uid `of` alone (None: of all users): their files first,
        then their records.

        Raises BadRequest, Unavailable.
        """

    async def events(self, since: int, wait: float) -> list[Event]:
        """Up to 1,000 events with `seq > since`; waits up to `wait` seconds for the first."""

    async def explain(self, job_id: int) -> dict[str, Any]:
        """Why the job waits, was tried again or ended: what `explaining.explanation` makes of it.

        Raises NotFound.
        """

    async def curves(self, job_id: int, points: int) -> dict[str, Any]:
        """What the job and those that it resumes reported: columns `steps` and `evaluations` of at
        most so many points, `parts` (who reported from which step on), `checkpoints` as they were
        saved, the steps that were `not_finite`, and where more may `follow`.

        Raises NotFound.
        """

    async def checkpoints(self, job_id: int) -> dict[str, Any]:
        """The checkpoints in the job's directory now: what `results.checkpoint_tree` says.

        Raises NotFound, BadRequest (it may not be read), Unavailable (it does not answer).
        """

    async def predictions(
        self, job_id: int, step: int | None, first: int, count: int
    ) -> dict[str, Any]:
        """`count` of the texts that an evaluation generated, from `first` on: what
        `results.prediction_rows` says. As `checkpoints`."""

    async def examples(self, job_id: int, show: int, wait: float) -> dict[str, Any]:
        """Return the first `show` examples of the job as its model sees them: `{"job", "ready",
        "notes", "sample", "problem"}`; `ready` is false where they take longer than `wait` seconds.

        Raises NotFound.
        """

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """Directory of one attempt (logs, `progress.jsonl`, `exit.json`). Raises NotFound."""

    async def machine(self) -> dict[str, Any]:
        """`{"snapshot": ... | None, "leases": [{"gpu_uuid", "job_id", "attempt", "held_by",
        "bytes", "uid"}], ...}`; `bytes` of the GPU's memory, None: all of it."""

    async def history(self, seconds: int, points: int) -> dict[str, Any]:
        """`{"step_seconds", "times", "series": {name: {"mean", "most"}}, "trouble"}` of the last so
        many seconds: what `zerotoolsd.history.series` says is kept, in columns."""

    def peaks(self, job_id: int | None, limit: int) -> list[dict[str, Any]]:
        """The most that attempts held, the newest first, as `history_file.AttemptPeak` has it."""

    def shares(self) -> dict[str, Any]:
        """`{"half_life_seconds", "fair", "users": [...]}`: of each user `uid`, `name`, `weight`,
        `share` and `used` (parts of 1), `gpu_hours` (which decay), `gpu_hours_in_all`, `factor`,
        the `gpus` that jobs hold now, and how many are `waiting` for some; those that go first at
        the top."""

    async def metrics(self, *, openmetrics: bool) -> str:
        """The metrics of the daemon and the machine, as text; of no single job."""

    def health(self) -> dict[str, Any]:
        """`{"version", "pid", "schema", "uptime_seconds", "api_versions", "last_event", "drain"}`;
        the last is `{"since", "uid", "why"}`, or None."""
