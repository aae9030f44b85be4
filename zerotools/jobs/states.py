"""The states of a job and the one table of how they follow one another.

The daemon's lifecycle decides *which* event happened; this table alone decides where it leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

QUEUED = "queued"
LAUNCHING = "launching"
RUNNING = "running"
STOPPING = "stopping"
WAITING_RETRY = "waiting_retry"
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"

STATES = (
    QUEUED,
    LAUNCHING,
    RUNNING,
    STOPPING,
    WAITING_RETRY,
    SUCCEEDED,
    FAILED,
    CANCELLED,
)
TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELLED})
ACTIVE = frozenset({LAUNCHING, RUNNING, STOPPING})
"""States in which an attempt's processes may exist."""

ADMIT = "admit"
STARTED = "started"
CANCEL = "cancel"
FINISHED = "finished"
STOPPED = "stopped"
CRASHED = "crashed"
GAVE_UP = "gave_up"
RETRY = "retry"

EVENTS = (ADMIT, STARTED, CANCEL, FINISHED, STOPPED, CRASHED, GAVE_UP, RETRY)

TRANSITIONS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (QUEUED, ADMIT): LAUNCHING,
        (QUEUED, CANCEL): CANCELLED,
        (QUEUED, GAVE_UP): FAILED,
        (LAUNCHING, STARTED): RUNNING,
        (LAUNCHING, CANCEL): STOPPING,
        (LAUNCHING, FINISHED): SUCCEEDED,
        (LAUNCHING, STOPPED): QUEUED,
        (LAUNCHING, CRASHED): WAITING_RETRY,
        (LAUNCHING, GAVE_UP): FAILED,
        (RUNNING, CANCEL): STOPPING,
        (RUNNING, FINISHED): SUCCEEDED,
        (RUNNING, STOPPED): QUEUED,
        (RUNNING, CRASHED): WAITING_RETRY,
        (RUNNING, GAVE_UP): FAILED,
        (STOPPING, STARTED): STOPPING,
        (STOPPING, CANCEL): STOPPING,
        (STOPPING, FINISHED): SUCCEEDED,
        (STOPPING, STOPPED): CANCELLED,
        (STOPPING, CRASHED): CANCELLED,
        (STOPPING, GAVE_UP): CANCELLED,
        (WAITING_RETRY, RETRY): QUEUED,
        (WAITING_RETRY, CANCEL): CANCELLED,
    }
)
