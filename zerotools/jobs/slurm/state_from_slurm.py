"""Compute the state of a job under Slurm from its records and from Slurm's answer.

This module does no I/O. The first matching case determines the state:

    end.json exists                       the state in end.json, whatever Slurm reports
    Slurm does not answer                 the last known state, which may be out of date
    Slurm lists the job as held           on hold, with Slurm's reason
    Slurm lists the job as waiting        queued, with Slurm's reason; cancelled if a user asked
    Slurm lists the job as running        the state in the job's records
    Slurm reports that the job ended      failed or cancelled: the job could not record its end
    Slurm does not know the job any more  the state in the records if they are fresh, else failed or
                                          cancelled

Until the nodes of a job have written a record, `first_view` returns the job as users see it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import keys_set
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm.job_directory import OUTPUT, JobDirectory
from zerotools.jobs.slurm.slurm_commands import HELD_AGAIN, ControllerJob
from zerotools.jobs.text.mask_secrets import HIDDEN, mask_tree

FRESH_SECONDS = 120.0
"""If a job's records changed within this time in seconds, the job still runs, even if Slurm
does not know it.
"""
_AGAIN_REASON = "BeginTime"
BY_SLURM = "Slurm ends its allocation"
"""Reason of a job that saves and ends because Slurm sent SIGTERM: at the end of its time, for a job
of a higher priority, or because somebody cancelled or requeued it in Slurm.
"""


NO_VIEW: dict[str, Any] = {  # also of a job with an unreadable record
    "id": None,
    "name": None,
    "state": states.QUEUED,
    "reason": None,
    "uid": None,
    "created": 0.0,
    "started": None,
    "ended": None,
    "attempts": [],
    "attempt": None,
    "world_size": 0,
    "sizes": None,
    "device": "cpu",
    "stage": None,
    "output_dir": "",
    "priority": 0,
    "begin": None,
    "after": [],
    "array": None,
    "latest_checkpoint": None,
    "uploaded": None,
    "progress": None,
    "evaluation": None,
    "phase": None,
    "spec": {},
    "set_keys": [],
    "environment": None,
    "user": None,
    "masked": False,
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """The facts that determine the state of a job.

    Attributes:
        view: the record that the job's nodes wrote for this submission.
        end: the record of how the submission ended.
        asked: True if a user has asked the job to end.
        controller: the job as Slurm reports it; None if Slurm does not know the job.
        silent: the reason why Slurm's controller could not be reached; None if it answered.
        quiet_seconds: the time since the job's records last changed; None if the job has no records
            yet.
        submitted_seconds: the time since the submission.
    """

    view: Mapping[str, Any] | None
    end: Mapping[str, Any] | None
    asked: bool
    controller: ControllerJob | None
    silent: str | None
    quiet_seconds: float | None
    submitted_seconds: float


def state_and_reason(known: Known) -> tuple[str, str | None]:
    """Return (the job's state, the reason). The state is one of `zerotools.jobs.states`. The reason
    for it is a sentence, or None if it is not known.
    """
    state, reason = _by_records(known)
    if known.end is not None:
        return str(known.end.get("state") or state), known.end.get("reason")
    if known.silent is not None:
        since = "" if known.quiet_seconds is None else f"{known.quiet_seconds:.0f} s ago"
        old = f"; the state shown here is from {since}" if since else ""
        return state, f"{known.silent}{old}; this does not affect the job itself"
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
    if found.runs:
        if found.state == "SUSPENDED":
            return state, "Slurm has suspended it"
        return (states.LAUNCHING if state == states.QUEUED else state), reason
    return _ended_by_slurm(found, known, reason)


def _by_records(known: Known) -> tuple[str, str | None]:
    if known.view is None:
        return states.QUEUED, None
    return str(known.view["state"]), known.view.get("reason")


def _why_it_waits(found: ControllerJob, before: str | None) -> str:
    why = f"Slurm: {found.reason or 'no reason is given'}"
    if found.reason == _AGAIN_REASON and before:
        why += (
            " (Slurm waits two minutes before it restarts a job; to start it now: scontrol update "
            f"JobId={found.number} StartTime=now)"
        )
    return f"{before}; {why}" if before else why


def _unknown_to_slurm(known: Known, state: str, reason: str | None) -> tuple[str, str | None]:
    if known.asked and known.view is None:
        return states.CANCELLED, "cancelled before it began"
    if known.quiet_seconds is None:
        if known.submitted_seconds < FRESH_SECONDS:
            return states.QUEUED, "Slurm does not list the job yet"
        return (
            states.FAILED,
            "the job is lost: it never began, and Slurm does not know it",
        )
    if known.quiet_seconds < FRESH_SECONDS:
        return state, reason or "Slurm does not list the job, but it runs"
    if known.asked:
        return states.CANCELLED, "cancelled; the job wrote no report of its end"
    return states.FAILED, (
        "the job is lost: Slurm does not know it any more, and its records have not changed "
        f"for {known.quiet_seconds / 60:.0f} min"
    )


def _ended_by_slurm(
    found: ControllerJob, known: Known, reason: str | None
) -> tuple[str, str | None]:
    """Return the state and the reason for a job that ended before it recorded its end: Slurm ended
    it, or its machine failed.
    """
    how = found.state.lower().replace("_", " ")
    told = f" ({found.reason})" if found.reason else ""
    said = f"; {reason}" if reason else ""
    if found.reason == "DependencyNeverSatisfied":
        return states.CANCELLED, "a job that it depends on did not succeed"
    if found.state == "CANCELLED":
        saved = said.replace(f"; {BY_SLURM}", "", 1)
        return (
            states.CANCELLED,
            f"{'cancelled' if known.asked else 'cancelled in Slurm'}{told}{saved}",
        )
    if known.asked:
        return states.CANCELLED, f"cancelled; Slurm ended the job: {how}{told}{said}"
    if found.state == "COMPLETED":
        return states.FAILED, f"its batch script ended before it recorded how the job ended{said}"
    return states.FAILED, f"Slurm ended the job: {how}{told}{said}"


def spec_of(directory: JobDirectory) -> JobSpec:
    """Return the job as it was submitted. Raises BadFile: its record cannot be read."""
    record = directory.job()
    if record is None:
        raise BadFile(f"{directory.path}: its job.json is missing, or cannot be read")
    stored = read_stored(record.get("spec"), record.get("given"))
    if stored.spec is None or stored.problems:
        raise BadFile(f"{directory.path}: job.json: {'; '.join(stored.problems)}")
    return stored.spec


def first_view(directory: JobDirectory) -> dict[str, Any]:
    """Return the job as users see it before its nodes have written anything. Raises BadFile."""
    record, spec = directory.job() or {}, spec_of(directory)
    shown: dict[str, Any] = mask_tree(record.get("spec") or {})
    given = record.get("given") or {}
    return {
        **NO_VIEW,
        "name": record.get("name"),
        "uid": record.get("uid", os.getuid()),
        "created": record.get("created") or 0.0,
        "world_size": spec.all_ranks,
        "device": spec.device,
        "stage": spec.stage,
        "output_dir": spec.output_dir or str(directory.path / OUTPUT),
        "spec": {**shown, "env": dict.fromkeys(spec.env, HIDDEN)},
        "set_keys": [key for key in keys_set(given) if not key.startswith("captured_env.")],
    }
