"""What happens to a job next: a pure function of where it stands and what happened.

The table of `zerotools.jobs.states` says where an event leads; this module decides which event an
attempt's end is, given the restarts that are left. No I/O, no clock: `now` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerotools.core.counts import counted
from zerotools.jobs import states
from zerotoolsd.queue.retrying.causes import USUAL, CauseRule
from zerotoolsd.supervisor.trouble import NOT_READY

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
"""How an attempt ends. `killed`: asked to stop, it did not within its grace. `lost`: its processes
are gone without a word. `not_started`: it cannot be started at all. `not_ready`: the machine could
not start it now."""

RELEASED_BY = "released by"
"""How the reason of a job begins that was unpaused while it was still saving."""

MOST_MACHINE_SECONDS = 60.0
"""The longest wait for a machine that is not ready."""

_ASKED = frozenset({states.STOPPING, *states.GIVING_WAY, states.HELD})
"""States in which an attempt may have been asked to stop. That is committed before it is asked: one
that says so in another state, as its user may have it do, has crashed and waits as after a crash,
or it would begin again at once, for ever."""
_HOPELESS = frozenset({BAD_JOB, BAD_CHECKPOINT, NOT_STARTED})


class NotAllowed(ValueError):
    """The event has no place in the job's state."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a job stands.

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
    """How long a crashed job waits: `first_seconds`, times `factor` each time, at most `most`."""

    first_seconds: float = 1.0
    factor: float = 4.0
    most_seconds: float = 300.0

    def delay(self, restart: int, rule: CauseRule = USUAL) -> float:
        """Seconds before restart number `restart` (the first is 1) after an end with this rule."""
        factor = self.factor if rule.factor is None else rule.factor
        first = self.first_seconds * rule.first
        return min(first * factor ** min(restart - 1, 50), self.most_seconds)


@dataclass(frozen=True, kw_only=True)
class Admit:
    """The scheduler gave the job what it needs."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """The attempt's supervisor runs."""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Somebody wants the job to end; `who` completes "cancelled by".

    `live`: an attempt of a held job is not known to be over.
    """

    who: str
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The daemon cannot go on with the job; `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Somebody wants a held job to go on. `live` as of Cancel; `waits`: what it is to wait for has
    not come yet."""

    live: bool = False
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class PutOnHold:
    """Somebody does not want the job to start before it is released; `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """Somebody wants a job that is on hold to start. `waits` as of Resume."""

    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Somebody wants a job to save and end its attempt, and not to start before it is unpaused;
    `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Yield:
    """The job is to save and end its attempt, and to be queued again; `why` is one sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Unpause:
    """Somebody wants a paused job to go on; `who` completes "released by". `waits` as of Resume."""

    who: str
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What the job waited for has come."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The wait after a crash is over."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The attempt is over: one of OUTCOMES, `cause` in one sentence, and the newest saved step.

    `time_limit` is that of the job, in words, where it was asked to stop at it; `note` says what
    went wrong after a good end. `unreadable` says why the job cannot be read, and so not be started
    again; `hopeless` why it would end the same way again. `not_ready_before`: so many attempts
    before it ended as not_ready, one after another. `rule` is that of its cause, for which the job
    was started again `same_before` times since it last got on; `part_of_wait` of the wait are kept.
    `steps_lost` were done and not saved; None: nobody knows how many.
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


def advance(job: Standing, event: LifecycleEvent, *, now: float, policy: RetryPolicy) -> Standing:
    """Where `job` stands after `event`. Raises NotAllowed."""
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


def name_of(job: Standing, event: LifecycleEvent) -> str:
    """The event's name in the transitions table."""
    match event:
        case Admit():
            return states.ADMIT
        case Started():
            return states.STARTED
        case Cancel():
            return states.STOP if event.live and job.state == states.HELD else states.CANCEL
        case Hold():
            return states.HOLD
        case Resume():
            if event.live:
                return states.TAKE_UP
            return states.RELEASED_TO_WAIT if event.waits else states.RESUME
        case PutOnHold():
            return states.PUT_ON_HOLD
        case Release():
            return states.RELEASED_TO_WAIT if event.waits else states.RELEASED
        case Ready():
            return states.READY
        case Pause():
            return states.PAUSE
        case Yield():
            return states.YIELD
        case Unpause():
            is_paused = job.state == states.PAUSED
            return states.RELEASED_TO_WAIT if event.waits and is_paused else states.UNPAUSED
        case Retry():
            return states.RETRY
        case Ended(outcome="finished"):
            return states.FINISHED
        case Ended(outcome="stopped", time_limit=None) if job.state in _ASKED:
            return states.STOPPED
        case Ended(outcome="killed", time_limit=None) if job.state in states.GIVING_WAY:
            return states.STOPPED  # after its grace: it ended as it was asked to, with a loss
    if event.outcome in _HOPELESS:
        return states.GAVE_UP
    if event.outcome == NOT_READY:
        return states.DEFERRED
    if event.time_limit is not None:
        return states.EXPIRED
    if event.unreadable is not None and job.state != states.STOPPING:
        return states.HOLD
    progressed = event.saved_step > job.best_step
    if event.hopeless is not None and not progressed:
        return states.GAVE_UP
    return states.GAVE_UP if _why_no_more(job, event) else states.CRASHED


def _why_no_more(job: Standing, end: Ended) -> str | None:
    """Why a crash is not followed by another start; None: it is."""
    progressed, rule = end.saved_step > job.best_step, end.rule
    used = 0 if progressed else job.restarts_used
    if end.max_restarts == 0 or (rule.counts and used >= end.max_restarts):
        return f"no restart left of {end.max_restarts}"
    if rule.retries is not None and (0 if progressed else end.same_before) >= rule.retries:
        again = "once" if rule.retries == 1 else f"{rule.retries} times"
        return f"not started again: it was {again} after {rule.words}, and has not got on since"
    return None


def _after_end(job: Standing, end: Ended, now: float, policy: RetryPolicy) -> Standing:
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
    if state == states.WAITING_RETRY and name == states.DEFERRED:
        wait = min(policy.delay(end.not_ready_before + 1), MOST_MACHINE_SECONDS)
        wait *= end.part_of_wait
        reason = f"the machine is not ready: {end.cause}; next try in {in_short(wait)} s"
        return replace(ended, eligible_at=now + wait, reason=reason)
    if state == states.PAUSED and name == states.CRASHED:
        used = ended.restarts_used + end.rule.counts
        return replace(ended, restarts_used=used, reason=_closing_reason(job, end, name, state))
    if state == states.WAITING_RETRY:
        return _put_off(ended, end, 1 if progressed else end.same_before + 1, now, policy)
    return replace(ended, reason=_closing_reason(job, end, name, state))


def _put_off(job: Standing, end: Ended, same: int, now: float, policy: RetryPolicy) -> Standing:
    """`job` after a crash that is followed by its `same`th start for this cause."""
    used = job.restarts_used + end.rule.counts
    wait = policy.delay(used if end.rule.counts else same, end.rule) * end.part_of_wait
    which = f"restart {used} of {end.max_restarts}" if end.rule.counts else "started again"
    if end.rule.retries is not None:
        which += f" ({same} of at most {end.rule.retries} after {end.rule.words})"
    cost = "" if end.rule.counts else f", at no cost to its {end.max_restarts} restarts"
    reason = f"{end.cause}; {which} in {in_short(wait)} s{cost}"
    return replace(job, restarts_used=used, eligible_at=now + wait, reason=reason)


def in_short(seconds: float) -> str:
    """Seconds as people read them: two digits, and none behind the point from 10 on."""
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def _closing_reason(job: Standing, end: Ended, name: str, state: str) -> str | None:
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
    if name == states.GAVE_UP and end.hopeless is not None and end.max_restarts:
        return f"{end.cause}; not started again: {end.hopeless}"
    if name == states.GAVE_UP and end.outcome not in _HOPELESS:
        return f"{end.cause}; {_why_no_more(job, end) or 'not started again'}"
    return end.cause


def _follow(state: str, event: str) -> str:
    following = states.TRANSITIONS.get((state, event))
    if following is None:
        raise NotAllowed(f"a {state} job cannot take the event {event}")
    return following
