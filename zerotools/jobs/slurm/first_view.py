"""The view of a job before its nodes have written anything."""

from __future__ import annotations

import os
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import keys_set
from zerotools.jobs.jobfile.stored import read_stored
from zerotools.jobs.slurm.job_directory import OUTPUT, JobDirectory
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.secrets import HIDDEN, mask_tree


def spec_of(directory: JobDirectory) -> JobSpec:
    """Return the job as it was submitted. Raises BadFile: it cannot be read."""
    record = directory.job()
    if record is None:
        raise BadFile(f"{directory.path}: its job.json is missing, or cannot be read")
    stored = read_stored(record.get("spec"), record.get("given"))
    if stored.spec is None or stored.problems:
        raise BadFile(f"{directory.path}: job.json: {'; '.join(stored.problems)}")
    return stored.spec


NO_VIEW: dict[str, Any] = {  # also of a job with an unreadable record
    "id": None,
    "name": None,
    "state": states.QUEUED,
    "reason": None,
    "uid": None,
    "created": 0.0,
    "started": None,
    "ended": None,
    "attempts": [],
    "attempt": None,
    "world_size": 0,
    "sizes": None,
    "device": "cpu",
    "stage": None,
    "output_dir": "",
    "priority": 0,
    "begin": None,
    "after": [],
    "array": None,
    "latest_checkpoint": None,
    "uploaded": None,
    "progress": None,
    "evaluation": None,
    "phase": None,
    "spec": {},
    "set_keys": [],
    "environment": None,
    "user": None,
    "masked": False,
}


def first_view(directory: JobDirectory) -> dict[str, Any]:
    """Return the view of a job before its nodes have written anything. Raises BadFile."""
    record, spec = directory.job() or {}, spec_of(directory)
    shown: dict[str, Any] = mask_tree(record.get("spec") or {})
    given = record.get("given") or {}
    return {
        **NO_VIEW,
        "name": record.get("name"),
        "uid": record.get("uid", os.getuid()),
        "created": record.get("created") or 0.0,
        "world_size": spec.all_ranks,
        "device": spec.device,
        "stage": spec.stage,
        "output_dir": spec.output_dir or str(directory.path / OUTPUT),
        "spec": {**shown, "env": dict.fromkeys(spec.env, HIDDEN)},
        "set_keys": [key for key in keys_set(given) if not key.startswith("captured_env.")],
    }
