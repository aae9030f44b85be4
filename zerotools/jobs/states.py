"""The states of a job. The daemon has the table of their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ON_HOLD = "on_hold"
"""Held by its user, or as a job with a dependency that ended otherwise, until it is released. None
of its processes runs."""
WAITING = "waiting"
"""It waits for a time, or for other jobs, before it is queued."""
QUEUED = "queued"
LAUNCHING = "launching"
RUNNING = "running"
STOPPING = "stopping"
PAUSING = "pausing"
"""Its attempt has a request to save and end; after that the job is `paused`."""
YIELDING = "yielding"
"""Its attempt has a request to save and end; after that the job is queued again."""
PAUSED = "paused"
"""Paused by its user with its saved state, until it is unpaused. None of its processes runs."""
WAITING_RETRY = "waiting_retry"
HELD = "held"
"""Held by the daemon with the reason, until a user resumes or cancels it; an attempt may still
run."""
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"
HALTED = "stopped"
"""Saved and ended at its time limit; it can be continued."""

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
"""States of a job with a request to save and end, which continues later."""
ACTIVE = frozenset({LAUNCHING, RUNNING, STOPPING, *GIVING_WAY})
"""States of a job that may have processes."""

HOLDING = "holding"
"""The displayed name of PAUSING: the job saves, and then is held."""
WORDS: Mapping[str, str] = MappingProxyType({ON_HOLD: HELD, PAUSED: HELD, PAUSING: HOLDING})
"""The displayed name of a state, if it differs from the stored one."""
STATE_WORDS = tuple(dict.fromkeys(WORDS.get(state, state) for state in STATES))
"""Every displayed name, once."""


def word_of(state: str) -> str:
    """Return the displayed name of a stored state: `held` or `holding` for each kind of hold,
    otherwise the state itself."""
    return WORDS.get(state, state)


def states_of(word: str) -> tuple[str, ...]:
    """Return the stored states with this displayed name; an empty tuple if no state has it."""
    return tuple(state for state in STATES if word_of(state) == word)


def in_words(state: str) -> str:
    """Return the words for a state that users read: "waiting retry", and "held" for each state in
    which a job starts only after a release. JSON has the stored state, too."""
    return word_of(state).replace("_", " ")
