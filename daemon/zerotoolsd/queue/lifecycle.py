"""Computes the next state of a job from its current state and an event.

`TRANSITIONS` is a table from (state, name of an event) to the next state. `advance_job` applies an
event. At the end of an attempt, the name of the event depends on how many restarts are left. This
module does no I/O and reads no clock: `now` is an argument. The states are defined in
`zerotools.jobs.states`, because clients need them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.states import (
    CANCELLED,
    FAILED,
    HALTED,
    HELD,
    LAUNCHING,
    ON_HOLD,
    PAUSED,
    PAUSING,
    QUEUED,
    RUNNING,
    STOPPING,
    SUCCEEDED,
    WAITING,
    WAITING_RETRY,
    YIELDING,
)
from zerotoolsd.queue.retries_by_cause import USUAL, CauseRule
from zerotoolsd.supervisor.transient_os_errors import NOT_READY

FINISHED = "finished"
STOPPED = "stopped"
BAD_JOB = "bad_job"
BAD_CHECKPOINT = "bad_checkpoint"
CRASHED = "crashed"
KILLED = "killed"
LOST = "lost"
NOT_STARTED = "not_started"

OUTCOMES = (
    FINISHED,
    STOPPED,
    BAD_JOB,
    BAD_CHECKPOINT,
    CRASHED,
    KILLED,
    LOST,
    NOT_STARTED,
    NOT_READY,
)
"""The possible outcomes of an attempt.

`killed`: the attempt did not stop within its grace period. `lost`: its processes disappeared
without a report. `not_started`: the attempt can never be started. `not_ready`: the machine could
not start the attempt now.
"""

RELEASED_BY = "released by"
"""Beginning of the reason of a job that was unpaused while its attempt was still saving."""

MOST_MACHINE_SECONDS = 60.0
"""Longest time, in seconds, before another try to start a job on a machine that is not ready."""

_ASKED = frozenset({states.STOPPING, *states.GIVING_WAY, states.HELD})
"""States in which the attempt may have been asked to stop. The state is committed before the
request is sent.

If an attempt reports a stop in any other state, it counts as crashed, and the job waits as after a
crash. The user of the job can cause such a report, and without the wait the job could restart
endlessly.
"""
_HOPELESS = frozenset({BAD_JOB, BAD_CHECKPOINT, NOT_STARTED})


class NotAllowed(ValueError):
    """The event is not possible in the current state of the job."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a job in its lifecycle, with its reason and counters.

    `restarts_used` is the number of crashes since `best_step` last increased. `best_step` is
    the newest step that any attempt saved. A job in the state waiting_retry can be queued
    again at `eligible_at` (seconds since the epoch).
    """

    state: str = states.QUEUED
    reason: str | None = None
    restarts_used: int = 0
    best_step: int = 0
    eligible_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The waits before restarts after a crash. The first wait is `first_seconds`; each next one
    is `factor` times as long, but at most `most_seconds`.
    """

    first_seconds: float = 1.0
    factor: float = 4.0
    most_seconds: float = 300.0

    def delay(self, restart: int, rule: CauseRule = USUAL) -> float:
        """Return the seconds to wait before restart number `restart` (from 1). `rule` is the retry
        rule for the cause of the crash.
        """
        factor = self.factor if rule.factor is None else rule.factor
        first = self.first_seconds * rule.first
        return min(first * factor ** min(restart - 1, 50), self.most_seconds)


@dataclass(frozen=True, kw_only=True)
class Admit:
    """Event: the scheduler has given the job its GPUs and other resources."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Event: the supervisor of the attempt has started."""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Event: a user cancels the job. The reason becomes "cancelled by" followed by `who`.

    `live` is True if an attempt of a held job may still be running.
    """

    who: str
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Event: the daemon cannot continue the job. `why` is the reason in one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Event: a user resumes a held job.

    `live` is True if an attempt of the job may still be running. `waits` is True if a
    condition for the start of the job is not met yet.
    """

    live: bool = False
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class PutOnHold:
    """Event: a user puts a waiting job on hold. `why` is the reason in one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """Event: a user releases a job that was on hold. `waits` is True if a condition for its
    start is not met yet.
    """

    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Event: a user pauses the job. `why` is the reason in one sentence.

    The attempt of the job saves and ends. The job does not start again until a user unpauses
    it.
    """

    why: str


@dataclass(frozen=True, kw_only=True)
class Yield:
    """Event: the attempt of the job must save and end, and the job is queued again. `why` is
    the reason in one sentence.
    """

    why: str


@dataclass(frozen=True, kw_only=True)
class Unpause:
    """Event: a user unpauses the job. If the attempt is still saving, the reason becomes
    "released by" followed by `who`.

    `waits` is True if a condition for the start of the job is not met yet.
    """

    who: str
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Event: all conditions for the start of the job are met."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Event: the wait of the job after a crash is over."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Event: the attempt of the job has ended.

    Attributes:
        outcome: one of OUTCOMES.
        cause: the cause in one sentence.
        saved_step: the newest step that the attempt saved.
        time_limit: the job's time limit as text, if the attempt was asked to stop because of this
            limit.
        note: a problem that occurred after a successful end, such as a failed export.
        unreadable: the reason why the job file cannot be read, so that the job cannot start again.
        hopeless: the reason why a restart would fail in the same way.
        not_ready_before: the number of attempts in a row, just before this one, that ended with the
            outcome `not_ready`.
        rule: the retry rule of the cause.
        same_before: the number of restarts for this cause since the job last made progress.
        wait_factor: the factor (at most 1) by which the wait before the next start is multiplied.
        steps_lost: the number of training steps that were done but not saved; None if unknown.
    """

    outcome: str
    cause: str
    saved_step: int
    max_restarts: int
    not_ready_before: int = 0
    time_limit: str | None = None
    note: str | None = None
    unreadable: str | None = None
    hopeless: str | None = None
    rule: CauseRule = USUAL
    same_before: int = 0
    wait_factor: float = 1.0
    steps_lost: int | None = None


LifecycleEvent = (
    Admit
    | Started
    | Cancel
    | Retry
    | Hold
    | Resume
    | PutOnHold
    | Release
    | Ready
    | Pause
    | Yield
    | Unpause
    | Ended
)


def advance_job(
    job: JobStatus, event: LifecycleEvent, *, now: float, policy: RetryPolicy
) -> JobStatus:
    """Return the state of `job` after `event`. `now` is the time in seconds since the epoch.
    Raises NotAllowed.
    """
    if isinstance(event, Ended):
        return _after_end(job, event, now, policy)
    state = _follow(job.state, name_of(job, event))
    if isinstance(event, Cancel):
        return replace(job, state=state, reason=f"cancelled by {event.who}", eligible_at=None)
    if isinstance(event, Hold | PutOnHold | Pause | Yield):
        return replace(job, state=state, reason=event.why, eligible_at=None)
    if isinstance(event, Started):
        return replace(job, state=state)
    if isinstance(event, Unpause):
        reason = f"{RELEASED_BY} {event.who}" if state == states.YIELDING else None
        return replace(job, state=state, reason=reason)
    return replace(job, state=state, reason=None, eligible_at=None)


def name_of(job: JobStatus, event: LifecycleEvent) -> str:
    """Return the name of `event` in the table TRANSITIONS, for a job in the state of `job`."""
    match event:
        case Admit():
            return ADMIT
        case Started():
            return STARTED
        case Cancel():
            return STOP if event.live and job.state == states.HELD else CANCEL
        case Hold():
            return HOLD
        case Resume():
            if event.live:
                return TAKE_UP
            return RELEASED_TO_WAIT if event.waits else RESUME
        case PutOnHold():
            return PUT_ON_HOLD
        case Release():
            return RELEASED_TO_WAIT if event.waits else RELEASED
        case Ready():
            return READY
        case Pause():
            return PAUSE
        case Yield():
            return YIELD
        case Unpause():
            is_paused = job.state == states.PAUSED
            return RELEASED_TO_WAIT if event.waits and is_paused else UNPAUSED
        case Retry():
            return RETRY
        case Ended(outcome="finished"):
            return FINISHED
        case Ended(outcome="stopped", time_limit=None) if job.state in _ASKED:
            return STOPPED
        case Ended(outcome="killed", time_limit=None) if job.state in states.GIVING_WAY:
            return STOPPED  # after its grace period: it stopped as requested, with a loss
    if event.outcome in _HOPELESS:
        return GAVE_UP
    if event.outcome == NOT_READY:
        return DEFERRED
    if event.time_limit is not None:
        return EXPIRED
    if event.unreadable is not None and job.state != states.STOPPING:
        return HOLD
    progressed = event.saved_step > job.best_step
    if event.hopeless is not None and not progressed:
        return GAVE_UP
    return GAVE_UP if _why_no_more(job, event) else CRASHED


def _why_no_more(job: JobStatus, end: Ended) -> str | None:
    """Return why the job is not restarted after the crash `end`; None if it is restarted."""
    progressed, rule = end.saved_step > job.best_step, end.rule
    used = 0 if progressed else job.restarts_used
    if end.max_restarts == 0 or (rule.counts and used >= end.max_restarts):
        return f"max_restarts = {end.max_restarts} allows no more restarts"
    if rule.retries is not None and (0 if progressed else end.same_before) >= rule.retries:
        again = "once" if rule.retries == 1 else f"{rule.retries} times"
        return (
            f"not started again: it was restarted {again} after {rule.words}, and made no "
            "progress since"
        )
    return None


def _after_end(job: JobStatus, end: Ended, now: float, policy: RetryPolicy) -> JobStatus:
    name = name_of(job, end)
    state = _follow(job.state, name)
    progressed = end.saved_step > job.best_step
    ended = replace(
        job,
        state=state,
        best_step=max(job.best_step, end.saved_step),
        restarts_used=0 if progressed else job.restarts_used,
        eligible_at=None,
    )
    if state == states.WAITING_RETRY and name == DEFERRED:
        wait = min(policy.delay(end.not_ready_before + 1), MOST_MACHINE_SECONDS)
        wait *= end.wait_factor
        reason = f"the machine is not ready: {end.cause}; next try in {in_short(wait)} s"
        return replace(ended, eligible_at=now + wait, reason=reason)
    if state == states.PAUSED and name == CRASHED:
        used = ended.restarts_used + end.rule.counts
        return replace(ended, restarts_used=used, reason=_closing_reason(job, end, name, state))
    if state == states.WAITING_RETRY:
        return _put_off(ended, end, 1 if progressed else end.same_before + 1, now, policy)
    return replace(ended, reason=_closing_reason(job, end, name, state))


def _put_off(job: JobStatus, end: Ended, same: int, now: float, policy: RetryPolicy) -> JobStatus:
    """Return `job` in the state waiting_retry after the crash `end`. `same` is the number of the
    next restart for this cause, from 1.
    """
    used = job.restarts_used + end.rule.counts
    wait = policy.delay(used if end.rule.counts else same, end.rule) * end.wait_factor
    which = f"restart {used} of {end.max_restarts}" if end.rule.counts else "started again"
    if end.rule.retries is not None:
        which += f" ({same} of at most {end.rule.retries} after {end.rule.words})"
    cost = "" if end.rule.counts else f"; not counted as one of its {end.max_restarts} restarts"
    reason = f"{end.cause}; {which} in {in_short(wait)} s{cost}"
    return replace(job, restarts_used=used, eligible_at=now + wait, reason=reason)


def in_short(seconds: float) -> str:
    """Format seconds: with two significant digits below 10, otherwise as a whole number."""
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def _closing_reason(job: JobStatus, end: Ended, name: str, state: str) -> str | None:
    if state == states.SUCCEEDED:
        return end.note
    if state == states.HELD:
        return f"{end.cause}; {end.unreadable or job.reason}"
    if state == states.CANCELLED:
        return f"{job.reason or 'cancelled'}; {end.cause}"
    if state == states.PAUSED or (job.state == states.YIELDING and state == states.QUEUED):
        lost = "" if end.steps_lost is None else f", {count_text(end.steps_lost, 'step')} lost"
        return f"{job.reason}; {end.cause}{lost}"
    if state == states.HALTED:
        return f"its time limit of {end.time_limit} is over; {end.cause}"
    if name == GAVE_UP and end.hopeless is not None and end.max_restarts:
        return f"{end.cause}; not started again: {end.hopeless}"
    if name == GAVE_UP and end.outcome not in _HOPELESS:
        return f"{end.cause}; {_why_no_more(job, end) or 'not started again'}"
    return end.cause


def _follow(state: str, event: str) -> str:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise NotAllowed(f"the event {event} is not possible for a {state} job")
    return following


ADMIT = "admit"
STARTED = "started"
CANCEL = "cancel"
DEFERRED = "deferred"
"""Name of an event: the machine could not start the attempt. This does not count as a restart."""
GAVE_UP = "gave_up"
RETRY = "retry"
EXPIRED = "expired"
HOLD = "hold"
RESUME = "resume"
TAKE_UP = "take_up"
"""Name of an event: a held job is resumed, and continues with its attempt, which is still
running.
"""
STOP = "stop"
"""Name of an event: a held job is cancelled while its attempt is still running, and the attempt
is stopped.
"""

PUT_ON_HOLD = "put_on_hold"
RELEASED = "released"
RELEASED_TO_WAIT = "released_to_wait"
"""Name of an event: a job that was released, unpaused or resumed still waits for its start time
or its dependencies.
"""
READY = "ready"
"""Name of an event: the start time of the job has come and its dependencies are met."""

PAUSE = "pause"
YIELD = "yield"
"""Name of an event: the job must give its GPUs to another job, and is queued again."""
UNPAUSED = "unpaused"

PRIORITY = "priority"
"""Name of an event that is no transition: the priority of an unfinished job was changed."""

EDIT = "edit"
"""Name of an event that is no transition: the job file of a job that has not started was
replaced.
"""

TRANSITIONS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (ON_HOLD, RELEASED): QUEUED,
        (ON_HOLD, RELEASED_TO_WAIT): WAITING,
        (ON_HOLD, PUT_ON_HOLD): ON_HOLD,
        (ON_HOLD, CANCEL): CANCELLED,
        (ON_HOLD, HOLD): HELD,
        (WAITING, READY): QUEUED,
        (WAITING, PUT_ON_HOLD): ON_HOLD,
        (WAITING, CANCEL): CANCELLED,
        (WAITING, PAUSE): PAUSED,
        (WAITING, HOLD): HELD,
        (QUEUED, PUT_ON_HOLD): ON_HOLD,
        (WAITING_RETRY, PUT_ON_HOLD): ON_HOLD,
        (QUEUED, ADMIT): LAUNCHING,
        (QUEUED, CANCEL): CANCELLED,
        (QUEUED, PAUSE): PAUSED,
        (QUEUED, HOLD): HELD,
        (LAUNCHING, STARTED): RUNNING,
        (LAUNCHING, CANCEL): STOPPING,
        (LAUNCHING, PAUSE): PAUSING,
        (LAUNCHING, YIELD): YIELDING,
        (LAUNCHING, FINISHED): SUCCEEDED,
        (LAUNCHING, CRASHED): WAITING_RETRY,
        (LAUNCHING, DEFERRED): WAITING_RETRY,
        (LAUNCHING, GAVE_UP): FAILED,
        (LAUNCHING, EXPIRED): HALTED,
        (LAUNCHING, HOLD): HELD,
        (RUNNING, STARTED): RUNNING,
        (RUNNING, CANCEL): STOPPING,
        (RUNNING, PAUSE): PAUSING,
        (RUNNING, YIELD): YIELDING,
        (RUNNING, FINISHED): SUCCEEDED,
        (RUNNING, CRASHED): WAITING_RETRY,
        (RUNNING, DEFERRED): WAITING_RETRY,
        (RUNNING, GAVE_UP): FAILED,
        (RUNNING, EXPIRED): HALTED,
        (RUNNING, HOLD): HELD,
        (STOPPING, STARTED): STOPPING,
        (STOPPING, CANCEL): STOPPING,
        (STOPPING, FINISHED): SUCCEEDED,
        (STOPPING, STOPPED): CANCELLED,
        (STOPPING, CRASHED): CANCELLED,
        (STOPPING, DEFERRED): CANCELLED,
        (STOPPING, GAVE_UP): CANCELLED,
        (STOPPING, EXPIRED): CANCELLED,
        (STOPPING, HOLD): HELD,
        (PAUSING, STARTED): PAUSING,
        (PAUSING, PAUSE): PAUSING,
        (PAUSING, UNPAUSED): YIELDING,
        (PAUSING, CANCEL): STOPPING,
        (PAUSING, FINISHED): SUCCEEDED,
        (PAUSING, STOPPED): PAUSED,
        (PAUSING, CRASHED): PAUSED,
        (PAUSING, DEFERRED): PAUSED,
        (PAUSING, GAVE_UP): FAILED,
        (PAUSING, EXPIRED): HALTED,
        (PAUSING, HOLD): HELD,
        (YIELDING, STARTED): YIELDING,
        (YIELDING, YIELD): YIELDING,
        (YIELDING, PAUSE): PAUSING,
        (YIELDING, CANCEL): STOPPING,
        (YIELDING, FINISHED): SUCCEEDED,
        (YIELDING, STOPPED): QUEUED,
        (YIELDING, CRASHED): WAITING_RETRY,
        (YIELDING, DEFERRED): WAITING_RETRY,
        (YIELDING, GAVE_UP): FAILED,
        (YIELDING, EXPIRED): HALTED,
        (YIELDING, HOLD): HELD,
        (PAUSED, PAUSE): PAUSED,
        (PAUSED, UNPAUSED): QUEUED,
        (PAUSED, RELEASED_TO_WAIT): WAITING,
        (PAUSED, CANCEL): CANCELLED,
        (PAUSED, HOLD): HELD,
        (WAITING_RETRY, PAUSE): PAUSED,
        (WAITING_RETRY, RETRY): QUEUED,
        (WAITING_RETRY, CANCEL): CANCELLED,
        (WAITING_RETRY, HOLD): HELD,
        (HELD, HOLD): HELD,
        (HELD, RESUME): QUEUED,
        (HELD, RELEASED_TO_WAIT): WAITING,
        (HELD, TAKE_UP): LAUNCHING,
        (HELD, STARTED): HELD,
        (HELD, CANCEL): CANCELLED,
        (HELD, STOP): STOPPING,
        (HELD, FINISHED): SUCCEEDED,
        (HELD, STOPPED): HELD,
        (HELD, CRASHED): HELD,
        (HELD, DEFERRED): HELD,
        (HELD, GAVE_UP): HELD,
        (HELD, EXPIRED): HALTED,
    }
)
