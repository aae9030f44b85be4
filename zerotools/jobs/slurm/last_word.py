"""Slurm's record of a job's end, kept next to the job: the controller forgets it minutes later.

Only for a job that did not record its end itself, such as one that scancel ended.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zerotools.jobs.slurm.controller_answers import ControllerJob
from zerotools.jobs.slurm.job_directory import read_record, write_record

ENDED = "slurm.json"
"""In a submission's directory."""
_FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "TIMEOUT"}
)


def keep_word(submission: Path, found: ControllerJob) -> None:
    """Record the end of a Slurm job, unless it may continue."""
    if found.state not in _FINAL or found.completing:
        return
    word = {"number": found.number, "state": found.state, "reason": found.reason}
    if read_record(submission / ENDED) != word:
        with suppress(OSError):  # who may only read the records, sees them all the same
            write_record(submission / ENDED, word)


def kept_word(submission: Path, number: str) -> ControllerJob | None:
    """Return the record of the job of this number, or None."""
    word = read_record(submission / ENDED) or {}
    if word.get("number") != number or word.get("state") not in _FINAL:
        return None
    return ControllerJob(
        number=number, state=str(word["state"]), reason=str(word.get("reason") or "")
    )
