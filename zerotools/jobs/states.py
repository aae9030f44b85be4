"""The states of a job, and the effect of the verbs hold, release and retry in each state.

The daemon has the table of the transitions between states. The help of the verbs, the table of
docs/how-to/hold-a-job.md, the page for browsers and the OpenAPI document are made from the tables
here. Users see two states, `held` and `holding`; `WORDS` has the stored states of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ON_HOLD = "on_hold"
"""Held by its user, or because a dependency ended otherwise than required, until it is released. No
process of the job runs."""
WAITING = "waiting"
"""It waits for a time, or for other jobs, before it is queued."""
QUEUED = "queued"
LAUNCHING = "launching"
RUNNING = "running"
STOPPING = "stopping"
PAUSING = "pausing"
"""The attempt has a request to save and end. Then the job is `paused`."""
YIELDING = "yielding"
"""The attempt has a request to save and end. Then the job is queued again."""
PAUSED = "paused"
"""Paused by its user with its saved state, until it is released. No process of the job runs."""
WAITING_RETRY = "waiting_retry"
HELD = "held"
"""Held by the daemon with a reason, until a user releases or cancels it. An attempt may still
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
"""States of a job that saves and ends, and continues later."""
ACTIVE = frozenset({LAUNCHING, RUNNING, STOPPING, *GIVING_WAY})
"""States of a job that may have processes."""

HOLDING = "holding"
"""The displayed name of PAUSING: the job saves, and then is held."""
WORDS: Mapping[str, str] = MappingProxyType({ON_HOLD: HELD, PAUSED: HELD, PAUSING: HOLDING})
"""Stored state -> displayed name, if they differ."""
STATE_WORDS = tuple(dict.fromkeys(WORDS.get(state, state) for state in STATES))
"""All displayed names, without repetition."""


VERBS = ("hold", "release", "retry")
OLD_NAMES_END = "0.5"
"""The release that removes old names of commands and requests."""
OLD_VERBS: Mapping[str, str] = {"pause": "hold", "unpause": "release", "resume": "retry"}
"""Older name of a verb -> verb. `resume` of a job that the daemon holds means `release`."""


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


class VerbRow(NamedTuple):
    """One kind of job: words that complete "a job that ...", its stored states, and the effect of
    each verb."""

    job: str
    states: frozenset[str]
    hold: str = "refused"
    release: str = "refused"
    retry: str = "refused"


VERB_ROWS = (
    VerbRow(
        "waits",
        frozenset({WAITING, QUEUED, WAITING_RETRY}),
        hold="it does not start: it is held",
    ),
    VerbRow(
        "runs",
        frozenset({LAUNCHING, RUNNING, YIELDING}),
        hold="it saves and stops (holding), then it is held",
    ),
    VerbRow("is stopping after a cancel", frozenset({STOPPING})),
    VerbRow(
        "is held, or holding",
        frozenset({ON_HOLD, PAUSED, PAUSING}),
        hold="nothing changes",
        release="it takes its old place, and continues",
        retry="refused: release it",
    ),
    VerbRow(
        "is held by the daemon",
        frozenset({HELD}),
        hold="refused: it is held already",
        release="it continues; running ranks are kept",
        retry="refused: release it",
    ),
    VerbRow(
        "failed, or was stopped",
        frozenset({FAILED, CANCELLED, HALTED}),
        retry="a new job continues from its checkpoint",
    ),
    VerbRow(
        "has succeeded",
        frozenset({SUCCEEDED}),
        retry="refused, unless --from-start is given",
    ),
)
"""The rows of the table. Each state is in exactly one row."""


def help_of(verb: str) -> str:
    """Return the effects of `verb` as a table for its help page. No line is wider than 78
    columns."""
    width = max(len(each.job) for each in VERB_ROWS)
    rows = [f"  {each.job.ljust(width)}  {getattr(each, verb)}" for each in VERB_ROWS]
    old = next(each for each, new in OLD_VERBS.items() if new == verb)
    others = " and ".join(each for each in VERBS if each != verb)
    end = f"See also {others}. Until {OLD_NAMES_END}, {old} is another name of {verb}."
    return "\n".join([f"{verb.capitalize()} a job that", *rows, f"  {end}"])


def markdown_table() -> str:
    """Return the table of all verbs for the manual."""
    rows = [("a job that", *(f"`zerotools {verb}`" for verb in VERBS)), ("---",) * 4]
    rows += [(each.job, each.hold, each.release, each.retry) for each in VERB_ROWS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
