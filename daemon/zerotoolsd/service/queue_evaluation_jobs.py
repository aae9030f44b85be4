"""Makes and finds the jobs that evaluate the checkpoints of another job.

An evaluation job is queued in the same transaction as the job that it evaluates. Preparing an
evaluation job takes milliseconds, and an array may need a thousand such jobs. So evaluation jobs
are prepared before the transaction. The transaction only fills in the directory and the name of the
evaluated job, which are not known earlier.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.derive_evaluation_job import (
    evaluation_job,
    evaluation_name,
    is_evaluated,
)
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.join_attempt_curves import scores_in, step_of
from zerotoolsd.attempts.last_report import last_report
from zerotoolsd.interface.start_conditions import Dependency
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import JobParts, NewJob

MOST_ARRAY_EVALUATIONS = 100
"""The largest number of jobs in an array with `eval.tasks`: one transaction writes their evaluation
jobs.
"""


def evaluations_of(store: Store, job: JobRow) -> list[JobRow]:
    """Return the jobs that evaluate a checkpoint of `job`, the oldest first."""
    return [each for each in store.after(job, '"evaluates"') if _evaluates(each, job)]


def _evaluates(other: JobRow, job: JobRow) -> bool:
    spec = other.reading.spec
    if spec is None or spec.script.evaluates is None:
        return False
    return PurePath(spec.script.evaluates).is_relative_to(job.output_dir)


def newest_evaluation(store: Store, job: JobRow) -> dict[str, Any] | None:
    """Return `{"job", "state", "step", "scores"}` of the newest job that evaluates `job`.

    `step` is the newest step with scores. Return None if no job evaluates `job`.
    """
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


def evaluation_of(spec: JobSpec, jobs_dir: Path) -> Callable[[JobRow], NewJob]:
    """Return a function that makes the evaluation job for a job with the job file `spec`.

    The argument of this function is the row of the queued job.
    """
    place, name = f"/{secrets.token_hex(16)}", secrets.token_hex(16)
    drawn = JobParts.of(evaluation_job(spec, place, name))

    def made(job: JobRow) -> NewJob:
        real = {place: job.output_dir, name: evaluation_name(job.name)}
        texts = [drawn.full_text, drawn.set_text]
        for word, text in real.items():
            texts = [each.replace(json.dumps(word), json.dumps(text)) for each in texts]
        given = json.loads(texts[1])
        script = replace(drawn.spec.script, evaluates=job.output_dir)
        own = replace(drawn.spec, name=real[name], script=script, given=given)
        parts = JobParts(spec=own, tree={}, full_text=texts[0], set_text=texts[1])
        return NewJob(
            uid=job.uid,
            name=own.name,
            spec=own,
            output_dir=None,
            default_output=jobs_dir,
            idempotency_key=None,
            now=job.created,
            priority=job.priority,
            after=(Dependency(job_id=job.id),),
            parts=parts,
        )

    return made


def refuse_many_evaluations(specs: Iterable[JobSpec]) -> None:
    """Raise BadRequest if too many jobs of an array have an evaluation job.

    All evaluation jobs are written in the transaction of the array.
    """
    count = sum(map(is_evaluated, specs))
    if count > MOST_ARRAY_EVALUATIONS:
        raise BadRequest(
            f"eval.tasks: {count:,} jobs of an array would each be evaluated, but at most "
            f"{MOST_ARRAY_EVALUATIONS} may be; submit several smaller arrays"
        )
