"""Check that jobs can use the object stores in their job files, before the jobs are submitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import INDEX_VARIABLE
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

SECONDS = 600.0
"""The time limit of a check in seconds. A request to a store is repeated for two minutes."""
_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
_PROBE = Path(__file__).with_name("store_check_process.py")


def check_stores(
    jobs: Sequence[JobSpec], *, writes: bool, here: Mapping[str, str] = os.environ
) -> None:
    """Check the object stores of `jobs`, each with the environment variables of the job.

    If `writes` is true, also write an object to the stores. `here` is the environment of this
    command.

    Raises:
        BadRequest: a job cannot use a store. The message has the reason and advice.
    """
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, spec in enumerate(jobs):
        own = _environment(spec, here)
        alike.setdefault(tuple(sorted(own.items())), []).append(number)
    for shared, numbers in alike.items():
        environment = dict(shared)
        for number, found in zip(
            numbers, _answers([jobs[n] for n in numbers], environment, writes=writes), strict=True
        ):
            if found:
                whose = "" if len(jobs) == 1 else f"job {number + 1} of {len(jobs)}: "
                why = "; ".join(found) + _missing_variables(environment, here)
                raise BadRequest(f"{whose}{why}")


def _environment(spec: JobSpec, here: Mapping[str, str]) -> dict[str, str]:
    found = {
        **{name: here[name] for name in ("PATH", "HOME", "LANG") if name in here},
        **(spec.captured_env or {}),
        **spec.env,
    }
    found.pop(INDEX_VARIABLE, None)  # it differs between jobs of an array, but not their stores
    return found


def _answers(
    jobs: Sequence[JobSpec], environment: Mapping[str, str], *, writes: bool
) -> list[list[str]]:
    """Return a list of problems for each job.

    One process with the variables in `environment` checks all jobs.
    """
    asked = json.dumps({"jobs": [job_to_dict(spec) for spec in jobs], "writes": writes})
    try:
        answer = subprocess.run(
            (sys.executable, "-E", "-P", str(_PROBE)),
            input=asked,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        found: list[list[str]] = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        return [[f"no store answered within {SECONDS:g} s"]] * len(jobs)
    except ValueError:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return [[f"the stores of the job do not answer: {last}"]] * len(jobs)
    return found


def _missing_variables(environment: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return a sentence that lists the variables for object stores that are set in `here`, but
    missing in the job's `environment`. Return an empty string if none is missing.
    """
    names = [n for n in sorted(here) if n.startswith(_OF_STORES) and n not in environment]
    if not names:
        return ""
    options = " ".join(f"--env {name}" for name in names)
    return (
        f". The job does not get these variables of your environment: {', '.join(names)}; "
        f"pass {options}"
    )
