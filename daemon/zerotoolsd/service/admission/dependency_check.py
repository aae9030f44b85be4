"""Checks the jobs that must end before a job starts, and the job's earliest start time."""

from __future__ import annotations

import os
from collections.abc import Sequence

from zerotools.core.errors import BadRequest
from zerotools.jobs import states
from zerotools.jobs.binding.durations import LONGEST_SECONDS
from zerotoolsd.interface.api_types import Conflict
from zerotoolsd.interface.start_conditions import OK, Dependency, QueueTerms
from zerotoolsd.queue.check_start_conditions import local_time_text
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.tables.dependency_table import DependencyTable, how_it_ended

MOST_DEPENDENCIES = 256
MOST_ARRAY_DEPENDENCIES = 4096
"""All jobs of an array may have at most this many dependencies together, because these are written
in one transaction.
"""
LATE_SECONDS = 120.0
"""Tolerance in seconds: an earliest start time that passed at most this long ago counts as now."""


def refuse_past(begin: float | None, now: float) -> None:
    """Raise BadRequest if the earliest start `begin` is in the past or too far in the future."""
    if begin is None:
        return
    if begin < now - LATE_SECONDS:
        raise BadRequest(
            f"begin: {local_time_text(begin)} is in the past; it is {local_time_text(now)} here"
        )
    if begin > now + LONGEST_SECONDS:
        days = LONGEST_SECONDS // 86400
        raise BadRequest(f"begin: {begin:.0f} s since 1970 is more than {days} days ahead")


def refuse_many(terms: Sequence[QueueTerms]) -> None:
    """Raise BadRequest if jobs with these terms have too many dependencies for one transaction."""
    count, most = sum(len(each.after) for each in terms), max(len(each.after) for each in terms)
    if count > MOST_ARRAY_DEPENDENCIES:
        raise BadRequest(
            f"after: {len(terms):,} jobs with up to {most} dependencies each have {count:,} "
            f"dependencies in all, but an array has at most {MOST_ARRAY_DEPENDENCIES:,}; submit "
            "one job with these dependencies, and let the array start after this job"
        )


def refuse_ring(table: DependencyTable, job_id: int, after: Sequence[Dependency]) -> None:
    """Raise BadRequest if job `job_id` would wait for itself, directly or through other jobs.

    `after` are the numbers of the jobs that it would wait for.
    """
    ways: dict[int, tuple[int, ...]] = {each.job_id: (each.job_id,) for each in after}
    open_ones = list(ways)
    while open_ones:
        number = open_ones.pop()
        if number == job_id:
            way = ", which is to start after job ".join(map(str, ways[number]))
            raise BadRequest(
                f"after: job {job_id} would wait for itself: it starts after job {way}"
            )
        for row in table.of(number):
            if row.on_id not in ways:
                ways[row.on_id] = (*ways[number], row.on_id)
                open_ones.append(row.on_id)


class DependencyCheck:
    """Checks whether the other jobs that a job waits for exist and can still end as required."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def refuse_hopeless(self, after: Sequence[Dependency], uid: int) -> None:
        """Raise BadRequest or Conflict if a job of user `uid` that waits for the jobs in `after`
        could never start.
        """
        if len(after) > MOST_DEPENDENCIES:
            raise BadRequest(
                f"after: names {len(after)} jobs, but at most {MOST_DEPENDENCIES} are allowed"
            )
        for each in after:
            job = self._find(each.job_id, uid)
            hopeless = job.state in states.TERMINAL and job.state != states.SUCCEEDED
            if each.condition == OK and hopeless:
                raise Conflict(
                    f"after: job {job.id} {how_it_ended(job.state)}, so it can no longer "
                    f"succeed; to start all the same, give {job.id}:any; or retry job {job.id}, "
                    "and name the new job"
                )

    def _find(self, job_id: int, uid: int) -> JobRow:
        try:
            job = self._store.job(job_id)
        except (KeyError, OverflowError):
            job = None
        # Jobs that the user may not see do not exist for the user.
        if job is None or uid not in (job.uid, os.geteuid(), 0):
            raise BadRequest(f"after: job {job_id} does not exist, or is not yours")
        return job
