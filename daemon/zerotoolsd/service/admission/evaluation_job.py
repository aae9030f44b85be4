"""The job that evaluates what another one trains, which is queued in the transaction of that one.

Most of it is made before, because it takes milliseconds, and an array may have a thousand of them:
the transaction only adds the two texts unknown before, directory and name.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zerotools.jobs.jobfile.evaluation_job import evaluation_job, evaluation_name
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.interface.queue_terms import Dependency
from zerotoolsd.queue.changes import JobParts, NewJob
from zerotoolsd.queue.rows import JobRow


def evaluation_of(spec: JobSpec, jobs_dir: Path) -> Callable[[JobRow], NewJob]:
    """Return what makes, of the row of the job `spec`, the job that evaluates it."""
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
