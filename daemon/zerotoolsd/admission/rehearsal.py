"""Asking the job's interpreter what its ranks would find wrong with the model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.admission.interpreter import ask

PROGRAM = Path(__file__).parents[1] / "trainer" / "rehearsal.py"
DEADLINE_SECONDS = 120.0
"""Importing torch and transformers takes most of it, on a busy machine."""


async def rehearse(spec: JobSpec, python: str, env: Mapping[str, str]) -> list[str]:
    """Notes on the model of `spec`, which `python` builds without weights, with `env`.

    Raises BadRequest: the ranks would refuse it, or the answer does not come.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(job_to_dict(spec), file)
        file.flush()
        output = await ask(
            python, env, "-P", str(PROGRAM), file.name, deadline_seconds=DEADLINE_SECONDS
        )
    try:
        answer = json.loads(output.splitlines()[-1])
        problem, notes = answer["problem"], [str(note) for note in answer["notes"]]
    except (ValueError, LookupError, TypeError):
        raise BadRequest(
            f"python = {python}: could not build the model, and did not say why; try it: "
            f'{python} -c "import torch, transformers"'
        ) from None
    if problem is not None:
        raise BadRequest(str(problem))
    return notes
