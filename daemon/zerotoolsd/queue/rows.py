"""The rows of the database as Python objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import zerotools
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.stored_job import StoredJob, read_stored
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.states import TERMINAL
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.lifecycle import JobStatus

LAUNCHING = "launching"
RUNNING = "running"
ENDED = "ended"

_KEPT = 256
"""Largest number of parsed job files in the cache."""


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """The position of a job in an array of jobs.

    The job is number `index` of `size` jobs. `id` is the id of the array, which is the
    number of its first job. `label` describes the values that distinguish this job.
    """

    id: int
    index: int
    size: int
    label: str


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job, as it is stored. Times are in seconds since the epoch.

    `spec_text` has every key of the job file, with the values that zerotools of version
    `spec_version` gave them at submit. `given_text` has only the keys that the user set; it is None
    for jobs that were stored in the first version of the database.
    """

    id: int
    uid: int
    name: str
    spec_text: str
    given_text: str | None
    spec_version: str
    output_dir: str
    standing: JobStatus
    created: float
    started: float | None
    ended: float | None
    priority: int = 0
    begin: float | None = None
    """The earliest start of the job, in seconds since the epoch; None if the job may start at any
    time.
    """
    array: ArrayPlace | None = None
    expected: str | None = None
    """The estimate of the memory that the job needs (`queue.expected_memory`)."""

    @property
    def state(self) -> str:
        """Return the state of the job, one of `zerotools.jobs.states`."""
        return self.standing.state

    @cached_property
    def reading(self) -> StoredJob:
        """Return the result of parsing the job file with this version of zerotools."""
        return _reading(self.spec_text, self.given_text)

    def with_reading(self, spec: JobSpec) -> JobRow:
        """Return a copy of this row that has `spec` as its parsed job file."""
        self.__dict__["reading"] = StoredJob(spec)  # where cached_property keeps it
        return self

    def read_as(self, other: JobRow) -> JobRow:
        """Return this row with the parsed job file of `other`, if both have the same text, so that
        the text is not parsed again.
        """
        if (self.spec_text, self.given_text) == (other.spec_text, other.given_text):
            self.__dict__["reading"] = other.reading
        return self

    @property
    def spec(self) -> JobSpec:
        """Return the job file as it was accepted. Raises UnreadableSpec."""
        reading = self.reading
        if reading.spec is None or reading.problems:
            raise UnreadableSpec(self, reading)
        return reading.spec


@lru_cache(_KEPT)
def _reading(spec_text: str, given_text: str | None) -> StoredJob:
    try:
        given = None if given_text is None else json.loads(given_text)
        return read_stored(json.loads(spec_text), given)
    except (ValueError, RecursionError) as error:
        return StoredJob(None, (f"its stored text is not JSON: {error}",))


class UnreadableSpec(Unsupported):
    """Another version of zerotools accepted the job file, and this version cannot read it."""

    def __init__(self, job: JobRow, reading: StoredJob) -> None:
        mine, its = zerotools.__version__, job.spec_version
        who = f"job {job.id} cannot be read"
        do = "cancel it and submit it again"
        if mine != its:
            who = f"job {job.id} was queued by zerotools {its}, but this is zerotools {mine}"
            do = f"start zerotoolsd {its}, or cancel the job"
        if job.state in TERMINAL:
            do = "submit it again" if mine == its else f"start zerotoolsd {its}"
        super().__init__(f"{who}: {'; '.join(reading.problems)}; {do}")


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt of a job.

    Attributes:
        result: the record that the supervisor wrote at the end of the attempt, or a substitute for
            this record.
        started_clock, boot_id: the start time on CLOCK_MONOTONIC in seconds, and the id of the
            machine's boot in which it was read; None if an older version started the attempt.
        cause: a cause from `retries_by_cause`; None if the attempt did not fail, or if an older
            version recorded its end.
    """

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
    started_clock: float | None = None
    boot_id: str | None = None
    host: str | None = None
    cause: str | None = None
    world_size: int | None = None
    """Number of ranks; None if an older version started the attempt. Such a job has only one
    possible size.
    """
    gpu_part: float = 1.0
    """The fraction of each GPU that is booked for the attempt."""
    gpu_baseline: Mapping[str, int] = field(default_factory=dict)
    """UUID of a GPU -> the bytes of its memory that were in use, but by no process, when the
    attempt started; None if unknown.
    """

    @property
    def began(self) -> Moment | None:
        """Return the start time of the attempt; None if it has not started or if unknown."""
        if self.started is None:
            return None
        return Moment(self.started, self.started_clock, self.boot_id)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The lease of a GPU for an attempt: of the whole GPU, or of `bytes` of its memory.

    `held_by` names a process that still uses the GPU after the attempt has ended; None if there is
    no such process.
    """

    gpu_uuid: str
    job_id: int
    attempt: int
    held_by: str | None = None
    host: str | None = None
    bytes: int | None = None


def job_row(row: Mapping[str, Any]) -> JobRow:
    """Return a JobRow for a row of the table `job`."""
    return JobRow(
        id=row["id"],
        uid=row["uid"],
        name=row["name"],
        spec_text=row["spec"],
        given_text=row["spec_given"],
        spec_version=row["spec_version"],
        output_dir=row["output_dir"],
        standing=JobStatus(
            state=row["state"],
            reason=row["reason"],
            restarts_used=row["restarts_used"],
            best_step=row["best_step"],
            eligible_at=row["eligible_at"],
        ),
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
        priority=row["priority"],
        begin=row["begin_at"],
        array=None
        if row["array_id"] is None
        else ArrayPlace(
            id=row["array_id"],
            index=row["array_index"],
            size=row["array_size"],
            label=row["array_label"] or "",
        ),
        expected=row["expected"],
    )


def attempt_row(row: Mapping[str, Any]) -> AttemptRow:
    """Return an AttemptRow for a row of the table `attempt`."""
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
        started_clock=row["started_clock"],
        boot_id=row["boot_id"],
        host=row["host"],
        cause=row["cause"],
        world_size=row["world_size"],
        gpu_part=row["gpu_part"],
        gpu_baseline=json.loads(row["gpu_baseline"] or "{}"),
    )
