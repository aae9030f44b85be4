"""What the HTTP handlers ask of the daemon: one protocol, its views, and its refusals.

Times are seconds since the epoch, sizes are bytes. `to_json()` gives plain JSON values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.states import TERMINAL
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.queue_terms import PLAIN_TERMS, JobEdit, QueueTerms


class NotFound(BadRequest):
    """No such job or attempt (HTTP 404)."""


class Forbidden(BadRequest):
    """The caller's uid may not do this (HTTP 403)."""


class Unauthorized(BadRequest):
    """Nobody knows who asks: there is no token, or a wrong one (HTTP 401)."""


class Conflict(BadRequest):
    """The job's state does not allow this, or a key is used twice (HTTP 409)."""


class Unavailable(ZerotoolsError):
    """The daemon cannot do it now: its disk is full, or it is stopping (HTTP 503)."""

    exit_code = 5


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One start of a job. `state` is launching, running, or ended; `cause` says why it ended, and
    `cause_kind` for which of `queue.retrying.causes`; `world_size` is None where an older version
    began it."""

    number: int
    state: str
    gpu_uuids: tuple[str, ...]
    started: float | None
    ended: float | None
    exit_code: int | None
    signal: int | None
    cause: str | None
    resumed_from: str | None
    peak_gpu_bytes: int | None
    peak_host_bytes: int | None
    steps_done: int
    run_dir: str
    cause_kind: str | None = None
    world_size: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        return {**asdict(self), "gpu_uuids": list(self.gpu_uuids)}


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job as clients see it.

    `reason` says why it waits, what it does before its first step, or why it ended; `progress` is
    the last step's datagram; `phase`, of a job whose ranks run, is `{"doing", "since",
    "last_progress", "quiet", "last_line"}` and what `standstill` says; `latest_checkpoint`
    is `{"step", "path", "verified", "not_verified"}`;
    `world_size` is that of the newest attempt, or the one with which it starts at least; `sizes`
    are those that an elastic job may have, None of one that has a single size;
    `stage` is None for a program of the user's own; `spec` has its `env` values blanked;
    `set_keys` are the dotted keys that its author set, None of a job of the first version;
    `begin` is when it may start at the earliest, `after` the jobs that it starts after, each
    `{"job", "condition", "state"}`; `array` is `{"id", "index", "size", "label"}` of one of several
    that were submitted as one;
    `environment` says what its ranks begin with, where nothing was taken along at submit;
    `user` is the name of `uid`, where it is known; `masked`: who asked sees that it is there, and
    the rest is left out.
    """

    id: int
    name: str
    state: str
    reason: str | None
    uid: int
    created: float
    started: float | None
    ended: float | None
    attempts: tuple[AttemptView, ...]
    world_size: int
    sizes: tuple[int, ...] | None = None
    device: str
    stage: int | None
    output_dir: str
    priority: int = 0
    begin: float | None = None
    after: tuple[Mapping[str, Any], ...] = ()
    array: Mapping[str, Any] | None = None
    latest_checkpoint: Mapping[str, Any] | None
    progress: Mapping[str, Any] | None
    phase: Mapping[str, Any] | None = None
    spec: Mapping[str, Any]
    set_keys: tuple[str, ...] | None = None
    environment: str | None = None
    user: str | None = None
    masked: bool = False

    @property
    def attempt(self) -> AttemptView | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def to_json(self) -> dict[str, Any]:
        """All fields under their own names, and `attempt`, the newest of `attempts`."""
        attempts = [attempt.to_json() for attempt in self.attempts]
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "attempts": attempts,
            "attempt": attempts[-1] if attempts else None,
        }


@dataclass(frozen=True, kw_only=True)
class Event:
    """One committed change. `seq` orders the feed; `kind` is the lifecycle event's name; `uid` is
    whose job it is, None where that was removed since."""

    seq: int
    time: float
    job_id: int | None
    attempt: int | None
    kind: str
    from_state: str | None
    to_state: str | None
    why: str | None
    uid: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CleanRequest:
    """Which jobs that are over are to go.

    `jobs`: these alone; else all in `states` that ended `older_than_seconds` ago, but for the
    `keep` that ended last. `outputs`: with what they wrote into the state directory. `logs_only`:
    their records stay. `dry_run`: nothing goes.
    """

    jobs: tuple[int, ...] | None = None
    states: frozenset[str] = TERMINAL
    older_than_seconds: float | None = None
    keep: int = 0
    outputs: bool = False
    logs_only: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class CleanedJob:
    """A job that goes, or is gone, with `size_bytes` of files; `outputs` are those among them that
    its ranks wrote."""

    id: int
    name: str
    state: str
    ended: float | None
    size_bytes: int
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeptJob:
    """A job that was meant and stays; `why` is a sentence. `gone`: there is none of this number."""

    id: int
    name: str
    why: str
    gone: bool = False


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What a clean removed, or would."""

    jobs: tuple[CleanedJob, ...]
    kept: tuple[KeptJob, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields, under their own names."""
        return {
            "jobs": [{**asdict(job), "outputs": list(job.outputs)} for job in self.jobs],
            "kept": [asdict(job) for job in self.kept],
        }


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """A process that somebody started by hand and that a job is to watch."""

    pid: int
    name: str | None = None
    time_limit: int | str | None = None
    checkpoint_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdoptedView:
    """The job that watches a process, the pids of what runs below that, and the GPUs that all of
    them use now, by UUID."""

    job: JobView
    below: tuple[int, ...]
    gpu_uuids: tuple[str, ...]


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
        self, spec: JobSpec, *, uid: int, model: bool = False, terms: QueueTerms = PLAIN_TERMS
    ) -> list[str]:
        """Refuse what `submit` would refuse now; nothing is queued. With `model`, also what the
        ranks would refuse of the model, which takes seconds; notes on it.

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

    async def hold(self, job_id: int, *, uid: int) -> JobView:
        """Let a job that has not started wait until it is released. Twice is harmless.

        Raises NotFound, Forbidden, Conflict (it runs or is over, or the daemon holds it),
        Unavailable.
        """

    async def release(self, job_id: int, *, uid: int) -> JobView:
        """Let a job that is on hold start when its turn comes. It waits no more for jobs that
        ended otherwise than they had to.

        Raises NotFound, Forbidden, Conflict (it is not on hold), Unavailable.
        """

    async def pause(self, job_id: int, *, uid: int, lose_steps: bool = False) -> JobView:
        """Let a job save, end its attempt and wait until it is unpaused; one that waits is paused
        at once. Twice is harmless. With `lose_steps` also one that is not known to save.

        Raises NotFound, Conflict (it is over, being cancelled, held, on hold, or would not go on
        where it is), Unavailable.
        """

    async def unpause(self, job_id: int, *, uid: int) -> JobView:
        """Let a paused job take its old place in the queue.

        Raises NotFound, Conflict (it is not paused), Unavailable.
        """

    async def resume(self, job_id: int, *, uid: int) -> JobView:
        """Queue a new job that goes on where this one, which is over, stopped, in its directory;
        or let this one go on, if it is held.

        Raises NotFound, Forbidden, Conflict (it is not over, or another job writes to its
        directory), BadRequest (it cannot run any more), Unavailable.
        """

    async def edit(self, job_id: int, edit: JobEdit, *, uid: int) -> JobView:
        """Change a job that has never started; all that `submit` looks at is looked at again.

        Raises NotFound, Conflict (it has started, or was changed meanwhile), and as `submit`.
        """

    async def retry(self, job_id: int, *, uid: int, output_dir: str | None = None) -> JobView:
        """Queue a new job that begins as this one, which is over, once did: from the start, in
        `output_dir`, or where the job file said.

        Raises NotFound, Forbidden, Conflict (it is not over), and what `submit` does.
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

    def run_dir(self, job_id: int, attempt: int) -> Path:
        """Directory of one attempt (logs, `progress.jsonl`, `exit.json`). Raises NotFound."""

    async def machine(self) -> dict[str, Any]:
        """`{"snapshot": ... | None, "leases": [{"gpu_uuid", "job_id", "attempt", "held_by",
        "bytes", "uid"}], ...}`; `bytes` of the GPU's memory, None: all of it."""

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
