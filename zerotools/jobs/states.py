"""The states of a job, and the effect of the commands hold, release and retry in each state.

The daemon has the table of the transitions between states. The tables in this module are the source
of the help of the three commands, the table of docs/how-to/hold-a-job.md, the page for browsers and
the OpenAPI document. Some stored states are displayed to users as `held` or `holding`; `WORDS`
lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
"""The displayed name of the state PAUSING: the job saves now, and is held afterwards."""
STARTING, SAVING = "starting", "saving"
"""Displayed names of a job before its first step, and of a job that waits for its checkpoint to be
written.
"""
LATE, STALLED = "late", "stalled"
"""Displayed names of a running job without progress. STALLED: it has made no progress for longer
than its phase allows. LATE: its step is late, or it has shown no sign of progress for a long time.
"""
WORDS: Mapping[str, str] = MappingProxyType(
    {ON_HOLD: HELD, LAUNCHING: STARTING, PAUSING: HOLDING, PAUSED: HELD}
)
"""Stored state -> displayed name, for states in which the two differ."""
RUNNING_WORDS = (STARTING, RUNNING, SAVING, LATE, STALLED)
"""The displayed names of the state RUNNING. The phase of the ranks decides which one is shown."""
STATE_WORDS = tuple(dict.fromkeys([*(WORDS.get(each, each) for each in STATES), *RUNNING_WORDS]))
"""All displayed names of states, without repetition."""
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        HELD: "warning",
        HOLDING: "warning",
        WAITING: "quiet",
        QUEUED: "quiet",
        STARTING: "busy",
        RUNNING: "busy",
        SAVING: "busy",
        LATE: "warning",
        STALLED: "bad",
        STOPPING: "warning",
        YIELDING: "warning",
        WAITING_RETRY: "warning",
        SUCCEEDED: "good",
        FAILED: "bad",
        CANCELLED: "quiet",
        HALTED: "warning",
    }
)
"""Displayed name -> meaning, which decides its colour on terminals and on the page."""
TIMED_WORDS = frozenset({STARTING, SAVING, LATE, STALLED, STOPPING, HOLDING, YIELDING})
"""The displayed names that are followed by their duration so far, such as `stalled 12m`."""
FIRST_SECONDS = 60.0
"""A program without a heartbeat counts as starting for this many seconds, or until its first step.
"""
_BEFORE_A_STEP = frozenset(
    (
        *(STARTING, "importing", "meeting the other ranks", "connecting", "preparing"),
        *("reading the data", "loading", "compiling", "first step"),
    )
)
"""The phases of a rank before its first step has ended."""


VERBS = ("hold", "release", "retry")
OLD_NAMES_END = "0.5"
"""The release of zerotools in which the old names of commands and requests are removed."""
OLD_VERBS: Mapping[str, str] = {"pause": "hold", "unpause": "release", "resume": "retry"}
"""Old name of a command -> its name now.

`resume` for a job that the daemon holds means `release`.
"""


def display_name(
    state: str, phase: Mapping[str, Any] | None = None, age_seconds: float | None = None
) -> str:
    """Return the displayed name of a stored state.

    For a running job, the name depends on the phase of its ranks (`phase` of a job in JSON), and on
    the time since the start of its attempt, if this is known.
    """
    if state != RUNNING or not phase:
        return WORDS.get(state, state)
    if phase.get("stalled"):
        return STALLED
    if phase.get("late") or phase.get("quiet"):
        return LATE
    name, is_first = phase.get("name"), phase.get("last_step") is None
    if name == SAVING:
        return SAVING
    is_young = name is None and age_seconds is not None and age_seconds < FIRST_SECONDS
    if phase.get("doing") or (is_first and (name in _BEFORE_A_STEP or is_young)):
        return STARTING
    return RUNNING


def since_of(word: str, phase: Mapping[str, Any], started: float | None) -> float | None:
    """Return the time from which a running job is displayed as `word`, in seconds since 1970; None
    if it is unknown. `started` is the start of the job's attempt.
    """
    if word in (STARTING, RUNNING):
        return started
    awaited = phase.get("waits_for") or {}
    if word in (SAVING, STALLED) and awaited.get("since") is not None:
        return float(awaited["since"])
    steps = word == SAVING or phase.get("late")
    names = ("last_step", "last_progress") if steps else ("last_progress", "last_step")
    return next((phase[name] for name in names if phase.get(name) is not None), started)


def states_of(word: str) -> tuple[str, ...]:
    """Return the stored states that may be displayed as `word`; empty if `word` is not the
    displayed name of a state.
    """
    return tuple(
        state
        for state in STATES
        if WORDS.get(state, state) == word or (state == RUNNING and word in RUNNING_WORDS)
    )


def display_text(state: str) -> str:
    """Return a state as text for users, such as "waiting retry".

    The text is "held" for every state of a job that starts only after a release.
    """
    return display_name(state).replace("_", " ")


def predicate(state: str) -> str:
    """Return a state as the end of a sentence about a job, such as "has failed" or "is running"."""
    if state in (SUCCEEDED, FAILED):
        return f"has {state}"
    return f"{'was' if state in (CANCELLED, HALTED) else 'is'} {display_text(state)}"


class VerbRow(NamedTuple):
    """A row of the table of commands: one kind of job, and the effect of each command on it.

    Attributes:
        job: the kind of job. The text completes a sentence that begins with "a job that".
        states: the stored states of such jobs.
        hold, release, retry: the effect of each command.
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
        release="it returns to its old position, and continues",
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
    """Return the effects of `hold`, `release` and `retry` as a Markdown table for the manual."""
    rows = [("a job that", *(f"`zerotools {verb}`" for verb in VERBS)), ("---",) * 4]
    rows += [(each.job, each.hold, each.release, each.retry) for each in VERB_ROWS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
