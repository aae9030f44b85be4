"""The results of jobs that evaluate the checkpoints of another job."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from zerotools.jobs.step_curves import scores_in, step_of
from zerotoolsd.attempts.last_report import last_report
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store


def evaluations_of(store: Store, job: JobRow) -> list[JobRow]:
    """Return the jobs that start after `job` and evaluate a checkpoint of it, the oldest first."""
    return [each for each in store.after(job, '"evaluates"') if _evaluates(each, job)]


def _evaluates(other: JobRow, job: JobRow) -> bool:
    spec = other.reading.spec
    if spec is None or spec.script.evaluates is None:
        return False
    return PurePath(spec.script.evaluates).is_relative_to(job.output_dir)


def newest_evaluation(store: Store, job: JobRow) -> dict[str, Any] | None:
    """Return the newest job that evaluates `job`, its state, and the step and the scores of the
    newest that reported any; None if no job evaluates it."""
    jobs = evaluations_of(store, job)
    if not jobs:
        return None
    found: dict[str, Any] = {"step": None, "scores": {}}
    attempts = (a for each in reversed(jobs) for a in reversed(store.attempts(each.id)))
    for told in (last_report(attempt).evaluation for attempt in attempts):
        if told is not None and (step := step_of(told)) is not None:
            found = {"step": step, "scores": scores_in(told)}
            break
    return {"job": jobs[-1].id, "state": jobs[-1].state, **found}
