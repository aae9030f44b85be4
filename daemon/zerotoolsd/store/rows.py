"""The rows of the database as values."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zerotools.jobs.parse import job_from_dict
from zerotools.jobs.spec import JobSpec
from zerotoolsd.lifecycle import Standing

LAUNCHING = "launching"
RUNNING = "running"
ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job. Times are seconds since the epoch."""

    id: int
    uid: int
    name: str
    spec_text: str
    output_dir: str
    standing: Standing
    created: float
    started: float | None
    ended: float | None

    @property
    def state(self) -> str:
        """The job's state, one of `zerotools.jobs.states`."""
        return self.standing.state

    @cached_property
    def spec(self) -> JobSpec:
        """The job as it was submitted."""
        return job_from_dict(json.loads(self.spec_text), source=f"job {self.id}")


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One start of a job. `result` is what its supervisor wrote at the end, or what we know."""

    job_id: int
    number: int
    token: str
    state: str
    run_dir: str
    gpu_uuids: tuple[str, ...]
    resumed_from: str | None
    started: float | None
    ended: float | None
    result: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A GPU that an attempt holds. `held_by` names the process that outlived it, if one did."""

    gpu_uuid: str
    job_id: int
    attempt: int
    held_by: str | None = None


def job_row(row: sqlite3.Row) -> JobRow:
    """A row of table `job`."""
    return JobRow(
        id=row["id"],
        uid=row["uid"],
        name=row["name"],
        spec_text=row["spec"],
        output_dir=row["output_dir"],
        standing=Standing(
            state=row["state"],
            reason=row["reason"],
            restarts_used=row["restarts_used"],
            best_step=row["best_step"],
            eligible_at=row["eligible_at"],
        ),
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
    )


def attempt_row(row: sqlite3.Row) -> AttemptRow:
    """A row of table `attempt`."""
    return AttemptRow(
        job_id=row["job_id"],
        number=row["number"],
        token=row["token"],
        state=row["state"],
        run_dir=row["run_dir"],
        gpu_uuids=tuple(json.loads(row["gpu_uuids"])),
        resumed_from=row["resumed_from"],
        started=row["started"],
        ended=row["ended"],
        result=None if row["result"] is None else json.loads(row["result"]),
    )
