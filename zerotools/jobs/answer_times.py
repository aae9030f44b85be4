"""How long the daemon looks at a job before it answers, and so how long a client waits."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # all tables of the job file, which clients of most requests do without
    from zerotools.jobs.tables.spec import JobSpec

REHEARSAL_SECONDS = 120.0
"""Building a model without weights and tokenising the first examples, in the job's interpreter.
Importing torch and transformers takes most of it, on a busy machine."""
DEEPSPEED_SECONDS = 30.0
"""Asking DeepSpeed, in the job's interpreter, about its configuration."""
INTERPRETER_SECONDS = 20.0
"""The time limit of other questions to the job's interpreter."""
WHOLE_LOOK_SECONDS = REHEARSAL_SECONDS + DEEPSPEED_SECONDS + INTERPRETER_SECONDS
"""All of it, for a job that the client does not have."""
MANY_JOBS_SECONDS = 120.0
"""A longer limit, if many jobs are checked before any of them is queued."""


def reads_data(spec: JobSpec) -> bool:
    """Return whether only the job's interpreter can check the data: data for a tokenizer, and files
    that pyarrow reads. For a directory that is possible, so return True."""
    from zerotools.jobs.datafiles.record_files import COLUMNAR
    from zerotools.jobs.tables.data import ENCODED, kind_of, patterns_of

    patterns = (*patterns_of(spec.data), *spec.eval.files)
    kinds = (*COLUMNAR, "")
    return kind_of(spec.data) in ENCODED or any(PurePath(p).suffix in kinds for p in patterns)


def answer_seconds(spec: JobSpec, *, model: bool = False) -> float:
    """Return how much longer than any other answer that to a submit may take."""
    asks = model or spec.resume_from is not None or reads_data(spec)
    config = DEEPSPEED_SECONDS + INTERPRETER_SECONDS if spec.engine == "deepspeed" else 0.0
    config += INTERPRETER_SECONDS if spec.eval.tasks else 0.0
    return config + (REHEARSAL_SECONDS if asks else 0.0)
