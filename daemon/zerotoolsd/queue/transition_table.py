"""The events of a job, and the one table of transitions between its states.

`lifecycle` decides *which* event happened; only this table decides the next state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
"""A held job with a live attempt continues with that attempt."""
STOP = "stop"
"""A held job with a live attempt is cancelled."""

PUT_ON_HOLD = "put_on_hold"
RELEASED = "released"
RELEASED_TO_WAIT = "released_to_wait"
"""A released, unpaused or resumed job still has to wait for its time or its dependencies."""
READY = "ready"
"""The job's wait is over."""

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
