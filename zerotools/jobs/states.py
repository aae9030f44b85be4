"""The states of a job and the one table of how they follow one another.

The daemon's lifecycle decides *which* event happened; this table alone decides where it leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ON_HOLD = "on_hold"
"""Put aside by its user, or as a job after which it was to start ended otherwise; until somebody
releases it. Nothing of it runs."""
WAITING = "waiting"
"""For a time, or for other jobs, before it takes its place among the queued ones."""
QUEUED = "queued"
LAUNCHING = "launching"
RUNNING = "running"
STOPPING = "stopping"
PAUSING = "pausing"
"""Asked to save and end its attempt; it is `paused` then."""
YIELDING = "yielding"
"""Asked to save and end its attempt; it is queued again then."""
PAUSED = "paused"
"""Put aside by its user with what it had saved, until it is unpaused. Nothing of it runs."""
WAITING_RETRY = "waiting_retry"
HELD = "held"
"""Set aside by the daemon with the reason, until somebody resumes or cancels it; an attempt may
still run."""
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"
HALTED = "stopped"
"""Saved and ended at its time limit, to be gone on from."""

STATES = (
    ON_HOLD,
    WAITING,
    QUEUED,
    LAUNCHING,
    RUNNING,
    STOPPING,
    PAUSING,
    YIELDING,
    PAUSED,
    WAITING_RETRY,
    HELD,
    SUCCEEDED,
    FAILED,
    CANCELLED,
    HALTED,
)
TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELLED, HALTED})
GIVING_WAY = frozenset({PAUSING, YIELDING})
"""States in which an attempt was asked to end, and its job goes on later."""
ACTIVE = frozenset({LAUNCHING, RUNNING, STOPPING, *GIVING_WAY})
"""States in which an attempt's processes may exist."""

_WORDS = {ON_HOLD: HELD, PAUSED: HELD, PAUSING: "holding"}


def in_words(state: str) -> str:
    """Return the words for a state that users read: "waiting retry", and "held" for each state in
    which a job starts only when somebody releases it. JSON has the stored state."""
    return _WORDS.get(state, state.replace("_", " "))


ADMIT = "admit"
STARTED = "started"
CANCEL = "cancel"
FINISHED = "finished"
STOPPED = "stopped"
CRASHED = "crashed"
DEFERRED = "deferred"
"""The machine could not start the attempt; that costs the job no restart."""
GAVE_UP = "gave_up"
RETRY = "retry"
EXPIRED = "expired"
HOLD = "hold"
RESUME = "resume"
TAKE_UP = "take_up"
"""A held job whose attempt is not over continues with that attempt."""
STOP = "stop"
"""A held job whose attempt is not over is cancelled."""

PUT_ON_HOLD = "put_on_hold"
RELEASED = "released"
RELEASED_TO_WAIT = "released_to_wait"
"""A released or unpaused job, or a held one that is resumed, whose time or whose jobs have not come
yet."""
READY = "ready"
"""What a job waited for has come."""

PAUSE = "pause"
YIELD = "yield"
"""The job is to give way, and to be queued again."""
UNPAUSED = "unpaused"

PRIORITY = "priority"
"""Not a transition: another priority for a job that is not over."""

EDIT = "edit"
"""Not a transition: another job file for a job that has not started."""

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
