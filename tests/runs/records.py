"""A record of a job's checkpoint, for tests that need one and care for some of its fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import JobRecord, ModelRecord, OptimizerRecord


def a_record(**changes: Any) -> JobRecord:
    """What two ranks saved at step 2 of 9."""
    fields: dict[str, Any] = {
        "step": 2,
        "steps_total": 9,
        "world_size": 2,
        "stage": 3,
        "precision": "fp32",
        "seed": 0,
        "consumed_sequences": 24,
        "batch_size": 12,
        "sequence_length": 8,
        "optimizer": OptimizerRecord("adamw", ()),
        "model": ModelRecord(1, 0),
    }
    return JobRecord(**{**fields, **changes})


def seal(directory: Path) -> Path:
    """Make the files in a directory a job's checkpoint, of the step that its name says."""
    step = find_job_checkpoints.step_of(directory.name)
    find_job_checkpoints.write_record(directory, a_record(step=step, world_size=2, rng="reseed"))
    write_manifest(directory)
    return directory
