"""The state of a job under Slurm: first from its records, then from Slurm. Pure.

end.json records its end                it ended so, whatever Slurm reports
Slurm lists it as waiting               queued, for Slurm's reason
Slurm lists it as running               as in its records
Slurm reports its end                   failed or cancelled: it ended before it could record it
Slurm does not know it (any more)       its records decide: it has a heartbeat, or is lost
Slurm does not answer                   the known state is old, and nothing follows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.slurm.controller_answers import HELD_AGAIN, ControllerJob

FRESH_SECONDS = 120.0
"""A job with records that changed within this time still runs, even if Slurm does not know it."""
_AGAIN_REASON = "BeginTime"


@dataclass(frozen=True, kw_only=True)
class Known:
    """The facts for the decision. `view` is the view that the job's nodes wrote of this submission,
    `end` its end, and `asked` is true if a user has requested its end. `controller` is Slurm's
    record, None: it does not know the job. `silent` is the reason why Slurm's controller could not
    be reached. `quiet_seconds` is the age of its last change of records, None: it has none yet;
    `submitted_seconds` is the age of its submission."""

    view: Mapping[str, Any] | None
    end: Mapping[str, Any] | None
    asked: bool
    controller: ControllerJob | None
    silent: str | None
    quiet_seconds: float | None
    submitted_seconds: float


def standing_of(known: Known) -> tuple[str, str | None]:
    """Return the job's state, one of `zerotools.jobs.states`, and why, in one sentence."""
    state, reason = _by_records(known)
    if known.end is not None:
        return str(known.end.get("state") or state), known.end.get("reason")
    if known.silent is not None:
        since = "" if known.quiet_seconds is None else f"{known.quiet_seconds:.0f} s ago"
        old = f"; the state shown here is from {since}" if since else ""
        return state, f"{known.silent}{old}; the job itself runs or waits as before"
    found = known.controller
    if found is None:
        return _unknown_to_slurm(known, state, reason)
    if found.state in HELD_AGAIN or (found.waits and "held" in found.reason.lower()):
        return states.ON_HOLD, (
            f"Slurm holds it ({found.reason or found.state}); to continue it: scontrol "
            f"release {found.number}"
        )
    if found.waits:
        if known.asked:
            return states.CANCELLED, "cancelled before it began"
        return states.QUEUED, _why_it_waits(found, reason if known.view else None)
    if found.goes:
        if found.state == "SUSPENDED":
            return state, "Slurm has suspended it"
        return (states.LAUNCHING if state == states.QUEUED else state), reason
    return _ended_by_slurm(found, known, reason)


def _by_records(known: Known) -> tuple[str, str | None]:
    if known.view is None:
        return states.QUEUED, None
    return str(known.view["state"]), known.view.get("reason")


def _why_it_waits(found: ControllerJob, before: str | None) -> str:
    why = f"Slurm: {found.reason or 'it has not said why'}"
    if found.reason == _AGAIN_REASON and before:
        why += (
            " (Slurm waits two minutes before it starts a job again; scontrol update "
            f"JobId={found.number} StartTime=now ends that)"
        )
    return f"{before}; {why}" if before else why


def _unknown_to_slurm(known: Known, state: str, reason: str | None) -> tuple[str, str | None]:
    if known.asked and known.view is None:
        return states.CANCELLED, "cancelled before it began"
    if known.quiet_seconds is None:
        if known.submitted_seconds < FRESH_SECONDS:
            return states.QUEUED, "Slurm does not list it yet"
        return (
            states.FAILED,
            "Slurm does not know it, and it never began: Slurm lost it, or never had it",
        )
    if known.quiet_seconds < FRESH_SECONDS:
        return state, reason or "Slurm does not list it, but it runs"
    if known.asked:
        return states.CANCELLED, "cancelled; it wrote no report of its end"
    return states.FAILED, (
        "Slurm does not know it any more, and it has made no progress for "
        f"{known.quiet_seconds / 60:.0f} min: it is lost"
    )


def _ended_by_slurm(
    found: ControllerJob, known: Known, reason: str | None
) -> tuple[str, str | None]:
    """Return the state of a job without a recorded end: Slurm, or its machine, ended it."""
    how = found.state.lower().replace("_", " ")
    told = f" ({found.reason})" if found.reason else ""
    if known.asked or found.state == "CANCELLED":
        where = f"; {reason}" if reason else ""
        return states.CANCELLED, f"Slurm ended it as cancelled{told}{where}"
    if found.reason == "DependencyNeverSatisfied":
        return states.CANCELLED, "the job after which it was to start has failed"
    said = f"; {reason}" if reason else ""
    if found.state == "COMPLETED":
        return states.FAILED, f"its batch script ended before it recorded how the job ended{said}"
    return states.FAILED, f"Slurm ended it: {how}{told}{said}"
