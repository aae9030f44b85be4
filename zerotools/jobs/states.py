"""The states of a job, and the effect of the commands hold, release and retry in each state.

The daemon has the table of the transitions between states. From the tables in this module are made:
the help of the three commands, the table of docs/how-to/hold-a-job.md, the page for browsers and
the OpenAPI document. Some stored states are displayed to users as `held` or `holding`; `WORDS`
lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ON_HOLD = "on_hold"
"""The job is held until it is released: by its user, or because a job that it depends on ended
otherwise than required. No process of the job runs.
"""
WAITING = "waiting"
"""The job waits for a time, or for other jobs, before it is queued."""
QUEUED = "queued"
LAUNCHING = "launching"
RUNNING = "running"
STOPPING = "stopping"
PAUSING = "pausing"
"""The running attempt was asked to save and end. After that, the job is `paused`."""
YIELDING = "yielding"
"""The running attempt was asked to save and end. After that, the job is queued again."""
PAUSED = "paused"
"""The job was held by its user while it ran.

Its training state is saved, no process of the job runs, and it waits until it is released.
"""
WAITING_RETRY = "waiting_retry"
HELD = "held"
"""The job is held by the daemon, with a reason, until a user releases or cancels it.

An attempt may still run.
"""
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"
HALTED = "stopped"
"""The job saved and ended at its time limit; it can be continued."""

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
"""States in which a job saves and ends, to be continued later."""
ACTIVE = frozenset({LAUNCHING, RUNNING, STOPPING, *GIVING_WAY})
"""States in which a job may have processes."""

HOLDING = "holding"
"""The displayed name of the state PAUSING: the job saves now, and is held after that."""
WORDS: Mapping[str, str] = MappingProxyType({ON_HOLD: HELD, PAUSED: HELD, PAUSING: HOLDING})
"""Stored state -> displayed name, for states in which the two differ."""
STATE_WORDS = tuple(dict.fromkeys(WORDS.get(state, state) for state in STATES))
"""All displayed names of states, without repetition."""


VERBS = ("hold", "release", "retry")
OLD_NAMES_END = "0.5"
"""The release of zerotools in which the old names of commands and requests are removed."""
OLD_VERBS: Mapping[str, str] = {"pause": "hold", "unpause": "release", "resume": "retry"}
"""Old name of a command -> its name now.

`resume` for a job that the daemon holds means `release`.
"""


def word_of(state: str) -> str:
    """Return the displayed name of a stored state.

    It is `held` or `holding` for the states of jobs that are on hold, otherwise the state itself.
    """
    return WORDS.get(state, state)


def states_of(word: str) -> tuple[str, ...]:
    """Return the stored states that are displayed as `word`; an empty tuple if no state is."""
    return tuple(state for state in STATES if word_of(state) == word)


def in_words(state: str) -> str:
    """Return a state as text for users, such as "waiting retry".

    It is "held" for each state of a job that starts only after a release. In JSON, users also get
    the stored state.
    """
    return word_of(state).replace("_", " ")


class VerbRow(NamedTuple):
    """A row of the table of commands: one kind of job, and the effect of each command on it.

    `job` completes "a job that ...", `states` are the stored states of such jobs, and the other
    fields describe the effects of hold, release and retry.
    """

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
"""The rows of the table of commands. Each state is in exactly one row."""


def help_of(verb: str) -> str:
    """Return the effects of the command `verb` on each kind of job, as a table for its help
    page. No line is wider than 78 columns.
    """
    width = max(len(each.job) for each in VERB_ROWS)
    rows = [f"  {each.job.ljust(width)}  {getattr(each, verb)}" for each in VERB_ROWS]
    old = next(each for each, new in OLD_VERBS.items() if new == verb)
    others = " and ".join(each for each in VERBS if each != verb)
    end = f"See also {others}. Until {OLD_NAMES_END}, {old} is another name of {verb}."
    return "\n".join([f"{verb.capitalize()} a job that", *rows, f"  {end}"])


def markdown_table() -> str:
    """Return the effects of all three commands as a Markdown table for the manual."""
    rows = [("a job that", *(f"`zerotools {verb}`" for verb in VERBS)), ("---",) * 4]
    rows += [(each.job, each.hold, each.release, each.retry) for each in VERB_ROWS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
