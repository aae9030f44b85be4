"""Runs the model and data checks of the ranks in the job's interpreter, before a job is
accepted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.data import ENCODED, kind_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.submit_timeout import REHEARSAL_SECONDS
from zerotoolsd.interface.api_types import CheckedJob, Unavailable
from zerotoolsd.service.admission.interpreter_check import run_interpreter
from zerotoolsd.service.admission.preflight_data import needs_pyarrow
from zerotoolsd.users.open_as_user import rights_of
from zerotoolsd.users.start_as_submitter import JobUser

PROGRAM = Path(__file__).parents[2] / "trainer" / "preflight_model_and_data.py"


async def run_rank_checks(
    spec: JobSpec,
    python: str,
    env: Mapping[str, str],
    user: JobUser | None = None,
    show: int = 0,
    *,
    directory: Path | None = None,
) -> CheckedJob:
    """Run the model and data checks of the ranks for `spec`; return their notes and examples.

    The interpreter `python` runs with the environment `env` as `user`, and builds the model without
    weights. `show` is the number of examples to return. The interpreter reads the job from a file
    in `directory` (None: the directory for temporary files).

    Raises:
        BadRequest: the ranks would refuse the model or the data, or the interpreter does not answer
            in time.
        Unavailable: the file with the job cannot be written.
    """
    with ExitStack() as stack:
        try:
            # Unbuffered: otherwise closing the file would write again what did not fit on the disk.
            with rights_of(user):
                file = stack.enter_context(
                    tempfile.NamedTemporaryFile(suffix=".json", dir=directory, buffering=0)
                )
                _write_all(file, json.dumps(job_to_dict(spec)).encode())
        except OSError as error:
            raise Unavailable(
                f"the job cannot be checked: a file in {directory or tempfile.gettempdir()} "
                f"cannot be written: {error.strerror}; free some space there"
            ) from None
        output = await run_interpreter(
            *(python, env, "-P", str(PROGRAM), file.name, str(show)),
            deadline_seconds=REHEARSAL_SECONDS,
            user=user,
        )
    try:
        answer = json.loads(output.splitlines()[-1])
        problem, notes = answer["problem"], [str(note) for note in answer["notes"]]
        sample = answer["sample"]
    except (ValueError, LookupError, TypeError):
        raise BadRequest(
            f"python = {python}: could not check the model and the data, and gave no reason; "
            f'try it: {python} -c "import torch, transformers"'
        ) from None
    if problem is not None:
        raise BadRequest(str(problem))
    return CheckedJob(notes, sample)


def reads_data(spec: JobSpec) -> bool:
    """Return whether the job's data can only be checked by the job's interpreter, because the data
    must be tokenized or needs pyarrow.
    """
    return kind_of(spec.data) in ENCODED or needs_pyarrow(spec)


def _write_all(file: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:  # on a full disk, only a part is written
        left = left[file.write(left) :]
