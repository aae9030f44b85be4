"""The next state of a job: a pure function of its state and an event.

`TRANSITIONS` is the table: (state, name of an event) to the next state. `advance` applies an event,
and decides which name the end of an attempt has, from the remaining restarts. No I/O and no clock:
`now` is an argument. The states are in `zerotools.jobs.states`, because clients need them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from zerotools.core.counts import counted
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
from zerotoolsd.queue.retry_rules import USUAL, CauseRule
from zerotoolsd.supervisor.transient_errors import NOT_READY

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
"""The outcomes of an attempt.

`killed`: it did not stop within its grace period. `lost`: its processes are gone without a report.
`not_started`: it cannot be started at all. `not_ready`: the machine could not start it now.
"""

RELEASED_BY = "released by"
"""Prefix of the reason of a job that was unpaused while it saved."""

MOST_MACHINE_SECONDS = 60.0
"""Longest wait, in seconds, for a machine that is not ready."""

_ASKED = frozenset({states.STOPPING, *states.GIVING_WAY, states.HELD})
"""States in which an attempt may have been asked to stop. The request is committed before it is
sent.

An attempt that reports a stop in another state has crashed. Its user can cause that, so the job
waits as after a crash; otherwise it could restart at once forever.
"""
_HOPELESS = frozenset({BAD_JOB, BAD_CHECKPOINT, NOT_STARTED})


class NotAllowed(ValueError):
    """The event is not allowed in the current state of the job."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a job in its lifecycle.

    `restarts_used` counts the crashes since `best_step`, the newest step that any attempt saved,
    last grew. A waiting_retry job may be queued again at `eligible_at` (seconds since the epoch).
    """

    state: str = states.QUEUED
    reason: str | None = None
    restarts_used: int = 0
    best_step: int = 0
    eligible_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The waits before restarts: `first_seconds`, times `factor` after each crash, at most
    `most_seconds`."""

    first_seconds: float = 1.0
    factor: float = 4.0
    most_seconds: float = 300.0

    def delay(self, restart: int, rule: CauseRule = USUAL) -> float:
        """Return the seconds before restart number `restart` (the first is 1) after an end with
        this rule."""
        factor = self.factor if rule.factor is None else rule.factor
        first = self.first_seconds * rule.first
        return min(first * factor ** min(restart - 1, 50), self.most_seconds)


@dataclass(frozen=True, kw_only=True)
class Admit:
    """Event: the scheduler gave the job its resources."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Event: the attempt's supervisor runs."""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Event: a user cancels the job. `who` completes "cancelled by".

    `live`: an attempt of a held job may still run.
    """

    who: str
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Event: the daemon cannot continue the job. `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Event: a user resumes a held job.

    `live`: an attempt of the job may still run. `waits`: a condition of the job is not met yet.
    """

    live: bool = False
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class PutOnHold:
    """Event: a user puts a waiting job on hold. `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """Event: a user releases a job on hold. `waits`: a condition of the job is not met yet."""

    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Event: a user pauses the job. `why` is one sentence.

    Its attempt saves and ends, and the job does not start again until it is unpaused.
    """

    why: str


@dataclass(frozen=True, kw_only=True)
class Yield:
    """Event: the job is to save and end its attempt, and is queued again. `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Unpause:
    """Event: a user unpauses the job. `who` completes "released by".

    `waits`: a condition of the job is not met yet.
    """

    who: str
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Event: the conditions of the job are met."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Event: the wait after a crash is over."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Event: the attempt has ended, with one of OUTCOMES, a `cause` in one sentence, and its newest
    saved step.

    `time_limit` is the job's limit in words, if the attempt was asked to stop because of it. `note`
    describes a problem after a good end. `unreadable` is the reason why the job cannot be read, and
    so cannot start again; `hopeless` is the reason why a restart would fail again.
    `not_ready_before` counts the consecutive attempts before it that were not_ready. `rule` is the
    rule of its cause; `same_before` counts the restarts for this cause since the last progress.
    `part_of_wait` is the fraction of the wait to use. `steps_lost` is the number of steps that were
    done and not saved; None: unknown.
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
    part_of_wait: float = 1.0
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


def advance(job: JobStatus, event: LifecycleEvent, *, now: float, policy: RetryPolicy) -> JobStatus:
    """Return the state of `job` after `event`. Raises NotAllowed."""
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
    """Return the event's name in the table TRANSITIONS."""
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
    """Return the reason why no restart follows a crash; None if one follows."""
    progressed, rule = end.saved_step > job.best_step, end.rule
    used = 0 if progressed else job.restarts_used
    if end.max_restarts == 0 or (rule.counts and used >= end.max_restarts):
        return f"no restart left of {end.max_restarts}"
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
        wait *= end.part_of_wait
        reason = f"the machine is not ready: {end.cause}; next try in {in_short(wait)} s"
        return replace(ended, eligible_at=now + wait, reason=reason)
    if state == states.PAUSED and name == CRASHED:
        used = ended.restarts_used + end.rule.counts
        return replace(ended, restarts_used=used, reason=_closing_reason(job, end, name, state))
    if state == states.WAITING_RETRY:
        return _put_off(ended, end, 1 if progressed else end.same_before + 1, now, policy)
    return replace(ended, reason=_closing_reason(job, end, name, state))


def _put_off(job: JobStatus, end: Ended, same: int, now: float, policy: RetryPolicy) -> JobStatus:
    """Return `job` after a crash, waiting for restart number `same` for this cause."""
    used = job.restarts_used + end.rule.counts
    wait = policy.delay(used if end.rule.counts else same, end.rule) * end.part_of_wait
    which = f"restart {used} of {end.max_restarts}" if end.rule.counts else "started again"
    if end.rule.retries is not None:
        which += f" ({same} of at most {end.rule.retries} after {end.rule.words})"
    cost = "" if end.rule.counts else f", at no cost to its {end.max_restarts} restarts"
    reason = f"{end.cause}; {which} in {in_short(wait)} s{cost}"
    return replace(job, restarts_used=used, eligible_at=now + wait, reason=reason)


def in_short(seconds: float) -> str:
    """Format seconds for people: two digits, and no decimals from 10 on."""
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def _closing_reason(job: JobStatus, end: Ended, name: str, state: str) -> str | None:
    if state == states.SUCCEEDED:
        return end.note
    if state == states.HELD:
        return f"{end.cause}; {end.unreadable or job.reason}"
    if state == states.CANCELLED:
        return f"{job.reason or 'cancelled'}; {end.cause}"
    if state == states.PAUSED or (job.state == states.YIELDING and state == states.QUEUED):
        lost = "" if end.steps_lost is None else f", {counted(end.steps_lost, 'step')} lost"
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
        raise NotAllowed(f"a {state} job cannot take the event {event}")
    return following


ADMIT = "admit"
STARTED = "started"
CANCEL = "cancel"
DEFERRED = "deferred"
"""The machine could not start the attempt; this does not count as a restart."""
GAVE_UP = "gave_up"
RETRY = "retry"
EXPIRED = "expired"
HOLD = "hold"
RESUME = "resume"
TAKE_UP = "take_up"
"""A held job that is resumed continues with its live attempt."""
STOP = "stop"
"""A held job with a live attempt is cancelled, and its attempt is stopped."""

PUT_ON_HOLD = "put_on_hold"
RELEASED = "released"
RELEASED_TO_WAIT = "released_to_wait"
"""A released, unpaused or resumed job still waits for its time or its dependencies."""
READY = "ready"
"""The job's time has come and its dependencies are met."""

PAUSE = "pause"
YIELD = "yield"
"""The job must yield its GPUs, and is queued again."""
UNPAUSED = "unpaused"

PRIORITY = "priority"
"""Not a transition: another priority for an unfinished job."""

EDIT = "edit"
"""Not a transition: another job file for an unstarted job."""

EVENTS = (
    *(ADMIT, STARTED, CANCEL, FINISHED, STOPPED, CRASHED, DEFERRED, GAVE_UP, RETRY, EXPIRED),
    *(HOLD, RESUME, TAKE_UP, STOP),
    *(PUT_ON_HOLD, RELEASED, RELEASED_TO_WAIT, READY),
    *(PAUSE, YIELD, UNPAUSED),
)

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
