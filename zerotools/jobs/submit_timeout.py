"""Time limits of a submit: how long the daemon checks a job before it answers, and how long the
client waits.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # all tables of the job file, which clients of most requests do without
    from zerotools.jobs.jobfile_tables.spec import JobSpec

REHEARSAL_SECONDS = 120.0
"""The time limit in seconds for the job's interpreter to build the model without weights and to
tokenise the first examples. On a busy machine, most of this is the import of torch and
transformers.
"""
DEEPSPEED_SECONDS = 30.0
"""The time limit in seconds for the check of DeepSpeed's configuration by the job's interpreter."""
INTERPRETER_SECONDS = 60.0
"""The time limit in seconds for any other check that the job's interpreter performs. An environment
on a network file system takes so long when it is read for the first time.
"""
WHOLE_LOOK_SECONDS = REHEARSAL_SECONDS + DEEPSPEED_SECONDS + INTERPRETER_SECONDS
"""The time limit in seconds for all checks together, for a client that does not know which
checks the job needs.
"""
MANY_JOBS_SECONDS = 120.0
"""The time limit in seconds of a request that checks many jobs before any of them is queued."""


def reads_data(spec: JobSpec) -> bool:
    """Return whether the job's interpreter has to read the data files to check them.

    This is the case for data that a tokenizer reads, and for files that pyarrow reads. A directory
    may contain such files, so the result for a directory is True.
    """
    from zerotools.jobs.datafiles.record_files import COLUMNAR
    from zerotools.jobs.jobfile_tables.data import ENCODED, kind_of, patterns_of

    patterns = (*patterns_of(spec.data), *spec.eval.files)
    kinds = (*COLUMNAR, "")
    return kind_of(spec.data) in ENCODED or any(PurePath(p).suffix in kinds for p in patterns)


def answer_seconds(spec: JobSpec, *, model: bool = False) -> float:
    """Return the number of seconds that the daemon may need to check the job, in addition to the
    time limit that all requests have. If `model` is true, the time to check the model is included.
    """
    asks = model or spec.resume_from is not None or reads_data(spec)
    config = DEEPSPEED_SECONDS + INTERPRETER_SECONDS if spec.engine == "deepspeed" else 0.0
    config += INTERPRETER_SECONDS if spec.eval.tasks else 0.0
    return config + (REHEARSAL_SECONDS if asks else 0.0)
