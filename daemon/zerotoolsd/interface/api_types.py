"""The arguments and results of the daemon's requests, and the errors raised when a request is
refused.

Times are in seconds since the epoch, and sizes are in bytes. `to_json()` returns plain JSON values.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.states import TERMINAL, display_name


@dataclass(frozen=True)
class CheckedJob:
    """The result of the check of a job that a submit would accept.

    `notes` are remarks for the user. `sample` shows the first training examples as the model gets
    them, if requested.
    """

    notes: list[str]
    sample: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One start of a job.

    Attributes:
        state: launching, running, or ended.
        cause, cause_kind: the reason of the attempt's end, and the kind of this reason, a constant
            of `queue.retries_by_cause`.
        world_size: the number of ranks; None for attempts of an older version.
        binding: the CPUs and memory nodes to which its ranks are bound, as a list of `{"ranks",
            "cpus", "memory_nodes", "why"}`; None if unknown.
    """

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
    binding: tuple[Mapping[str, Any], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values."""
        return {**asdict(self), "gpu_uuids": list(self.gpu_uuids)}


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job as clients see it.

    Attributes:
        reason: why the job waits, its activity before the first step, or why it ended.
        progress, evaluation: the reports of its last step and of its last evaluation.
        evaluated_by: the newest job that evaluates its checkpoints on tasks, `{"job", "state",
            "step", "scores"}`; None in lists.
        phase: set only while ranks run: `{"doing", "since", "last_progress", "quiet", "last_line"}`
            and the keys of `current_phase.time_since_step`.
        state_since: the time since which the job has had its `state_word`; None if unknown.
        usual_start_seconds: the usual time from start to first step of such jobs. None after this
            job has reached its first step; in a list, also None while it does not run.
        latest_checkpoint: `{"step", "path", "verified", "not_verified"}`.
        uploaded: the newest checkpoint in a store, `{"step", "path", "time", "why"}`. `why` is the
            error if a later upload failed.
        world_size: the number of ranks of the newest attempt; before the first attempt, the
            smallest number with which the job can start.
        sizes: the possible sizes of an elastic job; None for other jobs.
        stage: the ZeRO stage; None for a user's program.
        spec: the job file without the values in `env`.
        set_keys: the dotted keys that its author set; None for a job of the first version.
        begin: its earliest start time.
        after: the jobs that it starts after, each `{"job", "condition", "state"}`.
        array: `{"id", "index", "size", "label"}` if the job is one of several that were submitted
            together.
        environment: a description of the environment of its ranks, if the submit sent no
            environment.
        user: the name of `uid`, if known.
        masked: whether only the public part is filled in, because the job belongs to another user.
        shortened: whether long parts of `spec` are left out, because the job is in a list.
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
    uploaded: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None = None
    evaluated_by: Mapping[str, Any] | None = None
    phase: Mapping[str, Any] | None = None
    state_since: float | None = None
    usual_start_seconds: float | None = None
    spec: Mapping[str, Any]
    set_keys: tuple[str, ...] | None = None
    environment: str | None = None
    user: str | None = None
    masked: bool = False
    shortened: bool = False

    @property
    def attempt(self) -> AttemptView | None:
        """The newest attempt; None before the first start."""
        return self.attempts[-1] if self.attempts else None

    @property
    def state_word(self) -> str:
        """The displayed name of the state."""
        started = self.attempt.started if self.attempt else None
        age_seconds = None if started is None else time.time() - started
        return display_name(self.state, self.phase, age_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return all fields keyed by name, `state_word`, and `attempt`, the newest of
        `attempts`.
        """
        attempts = [attempt.to_json() for attempt in self.attempts]
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "state_word": self.state_word,
            "attempts": attempts,
            "attempt": attempts[-1] if attempts else None,
        }


@dataclass(frozen=True, kw_only=True)
class Event:
    """One change of the queue.

    Attributes:
        seq: the number of the event; events are ordered by their numbers.
        kind: the name of the change, such as a start.
        uid: the owner of the job; None if the job was removed later.
    """

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
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CleanRequest:
    """A request to remove ended jobs.

    Attributes:
        jobs: remove only these jobs.
        states, older_than_seconds, keep: without `jobs`, remove all jobs in `states` that ended
            more than `older_than_seconds` ago, except for the `keep` jobs that ended last.
        outputs: also remove the outputs of the jobs in the state directory.
        logs_only: remove only logs and progress, and keep the records of the jobs.
        dry_run: report the files that would be removed, and remove nothing.
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
    """A job that is removed, or would be removed.

    `size_bytes` is the size of the job's files; `outputs` are the files that its ranks wrote.
    """

    id: int
    name: str
    state: str
    ended: float | None
    size_bytes: int
    outputs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "outputs": list(self.outputs)}


@dataclass(frozen=True, kw_only=True)
class KeptJob:
    """A job that a clean request selects but does not remove.

    `why` is the reason, a sentence. `gone` is True if no job has this number.
    """

    id: int
    name: str
    why: str
    gone: bool = False

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """The result of a clean request: the jobs that were removed, or would be removed."""

    jobs: tuple[CleanedJob, ...]
    kept: tuple[KeptJob, ...]

    def to_json(self) -> dict[str, Any]:
        return {name: [each.to_json() for each in getattr(self, name)] for name in ("jobs", "kept")}


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """A process that a user started by hand, and that a job will watch."""

    pid: int
    name: str | None = None
    time_limit: int | str | None = None
    checkpoint_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdoptedView:
    """A job that watches a process. `below` are the pids of the descendants of the process, and
    `gpu_uuids` are the GPUs that the process and its descendants use now.
    """

    job: JobView
    below: tuple[int, ...]
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ArrayRequest:
    """A request to apply an operation, one of `ARRAY_OPERATIONS`, to all jobs of an array."""

    do: str
    priority: int | None = None
    lose_steps: bool = False


ARRAY_OPERATIONS = ("cancel", "hold", "release", "pause", "unpause", "priority")


@dataclass(frozen=True, kw_only=True)
class ArrayView:
    """The result of an operation on an array: the changed jobs in their new state, and the number
    of each unchanged job with the reason.

    Jobs that have already ended are in neither list.
    """

    jobs: tuple[JobView, ...]
    kept: tuple[tuple[int, str], ...]


class NotFound(BadRequest):
    """The job or attempt does not exist (HTTP 404)."""


class Forbidden(BadRequest):
    """The caller may not send this request (HTTP 403)."""


class Unauthorized(BadRequest):
    """The caller is unknown: the token is missing or wrong (HTTP 401)."""


class Conflict(BadRequest):
    """The job's state does not allow this, or an idempotency key was used for another job (HTTP
    409).
    """


class Unavailable(ZerotoolsError):
    """The daemon cannot do this now: its disk is full, or it is stopping (HTTP 503)."""

    exit_code = 5
