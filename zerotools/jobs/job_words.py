"""The verbs for a job that does not run, and the result of each for every state.

The help of the verbs, the table of docs/how-to/hold-a-job.md, the page for browsers and the OpenAPI
document are made from these tables. The two states are `held` and `holding`; `states.WORDS` has the
stored states of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zerotools.jobs import states

VERBS = ("hold", "release", "retry")
OLD_NAMES_END = "0.5"
"""The release that removes old names of commands and requests."""
OLD_VERBS: Mapping[str, str] = {"pause": "hold", "unpause": "release", "resume": "retry"}
"""Older names of the verbs; `resume` of a job that the daemon holds is `release`."""


class VerbRow(NamedTuple):
    """One kind of job, in words that complete "a job that", its stored states, and the result of
    each verb."""

    job: str
    states: frozenset[str]
    hold: str = "refused"
    release: str = "refused"
    retry: str = "refused"


VERB_ROWS = (
    VerbRow(
        "waits",
        frozenset({states.WAITING, states.QUEUED, states.WAITING_RETRY}),
        hold="it does not start: it is held",
    ),
    VerbRow(
        "runs",
        frozenset({states.LAUNCHING, states.RUNNING, states.YIELDING}),
        hold="it saves and stops (holding), then it is held",
    ),
    VerbRow("is stopping after a cancel", frozenset({states.STOPPING})),
    VerbRow(
        "is held, or holding",
        frozenset({states.ON_HOLD, states.PAUSED, states.PAUSING}),
        hold="nothing changes",
        release="it takes its old place, and continues",
        retry="refused: release it",
    ),
    VerbRow(
        "is held by the daemon",
        frozenset({states.HELD}),
        hold="refused: it is held already",
        release="it continues; running ranks are kept",
        retry="refused: release it",
    ),
    VerbRow(
        "failed, or was stopped",
        frozenset({states.FAILED, states.CANCELLED, states.HALTED}),
        retry="a new job continues from its checkpoint",
    ),
    VerbRow(
        "has succeeded",
        frozenset({states.SUCCEEDED}),
        retry="refused, unless --from-start is given",
    ),
)
"""Every state, in exactly one row."""


def help_of(verb: str) -> str:
    """Return the column of `verb` as a table for its help page; no line is wider than 78."""
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
