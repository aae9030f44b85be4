"""Whether a job will be able to use the stores that it names, asked before it is queued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.tables.spec import JobSpec

SECONDS = 600.0
"""What asks tries again for two minutes, each time that it asks."""
_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
_PROBE = Path(__file__).with_name("store_probe.py")


def check_stores(spec: JobSpec, *, writes: bool, here: Mapping[str, str] = os.environ) -> None:
    """Ask with the environment that the job is submitted with; `writes`: also write something.

    Raises:
        BadRequest: why the job would not come far, and what to do.
    """
    environment = {
        **{name: here[name] for name in ("PATH", "HOME", "LANG") if name in here},
        **(spec.captured_env or {}),
        **spec.env,
    }
    asked = json.dumps({"job": job_to_dict(spec), "writes": writes})
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
        found = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        found = [f"no store answered within {SECONDS:g} s"]
    except ValueError:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        found = [f"the stores of the job cannot be asked: {last}"]
    if found:
        raise BadRequest("; ".join(found) + _left_behind(environment, here))


def _left_behind(environment: Mapping[str, str], here: Mapping[str, str]) -> str:
    """What the job does not get of the variables of stores that are set here."""
    names = [n for n in sorted(here) if n.startswith(_OF_STORES) and n not in environment]
    if not names:
        return ""
    options = " ".join(f"--env {name}" for name in names)
    return f". Of what is set here the job does not get {', '.join(names)}; pass {options}"
