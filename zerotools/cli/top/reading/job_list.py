"""Lists the daemon's jobs: running and waiting jobs, and jobs that ended during the last hour.

All jobs are listed only after an event, or after some time. In between, only running jobs are
listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.reading.cached_value import SPARED
from zerotools.core.errors import DaemonRefused, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE, STATES, TERMINAL

MOST = 200
"""At most this many jobs of each state are shown. Finished jobs are shown only if they are among
this many newest jobs of the queue.
"""
ENDED_SECONDS = 3600.0
WHOLE_SECONDS = 30.0
OPEN_STATES = tuple(state for state in STATES if state not in TERMINAL)
BLANK: Mapping[str, Any] = MappingProxyType(
    {
        "name": "",
        "state": "unknown",
        "reason": None,
        "uid": -1,
        "created": 0.0,
        "started": None,
        "ended": None,
        "attempts": [],
        "attempt": None,
        "world_size": 0,
        "device": "unknown",
        "stage": None,
        "output_dir": "",
        "priority": 0,
        "latest_checkpoint": None,
        "progress": None,
        "spec": MappingProxyType({}),
    }
)
"""Default values of the fields that a daemon of another version may leave out."""


@dataclass(frozen=True)
class ListedJobs:
    """The jobs in the order of their numbers. `is_cut` is True if some state has too many jobs, so
    that not all of them are listed."""

    jobs: tuple[Job, ...] = ()
    is_cut: bool = False


class JobList:
    """Lists the jobs repeatedly. `clock` returns monotonic seconds, and `now` seconds since
    1970.
    """

    def __init__(
        self,
        client: DaemonClient,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._clock = clock
        self._now = now
        self._jobs: dict[int, Job] = {}
        self._is_cut = False
        self._event: int | None = None
        self._has_changed = True
        self._spared_until = self._whole_at = 0.0

    def read(self) -> ListedJobs:
        """Return the current list of jobs.

        Raises:
            ZerotoolsError: the daemon does not answer. The next call lists all jobs, because
                another daemon may answer then.
        """
        try:
            return self._read()
        except ZerotoolsError:
            self._event, self._whole_at = None, 0.0
            raise

    def _read(self) -> ListedJobs:
        begun = self._clock()
        self._has_changed = self._has_new_events() or self._has_changed
        if begun >= self._whole_at or (self._has_changed and begun >= self._spared_until):
            self._list_all()
            took = self._clock() - begun
            self._spared_until = begun + SPARED * took
            self._whole_at = begun + max(WHOLE_SECONDS, SPARED * took)
        else:
            self._list_running()
        return ListedJobs(tuple(self._jobs[number] for number in sorted(self._jobs)), self._is_cut)

    def _has_new_events(self) -> bool:
        """Return True if there was an event since the last call, or if this is unknown."""
        if self._event is None:
            last = self._client.health().get("last_event")
            self._event = last if isinstance(last, int) else None
            return True
        try:
            answer = self._client.events(self._event)
        except DaemonRefused:  # older daemon, or this user may not see events
            return True
        self._event = int(answer["next"])
        return bool(answer["events"])

    def _list_all(self) -> None:
        newest = self._client.jobs(limit=MOST)
        is_cut, pages = False, [newest]
        if len(newest) == MOST:
            # Of a long queue, the jobs that start next, and not those that start last.
            opened = [
                self._client.jobs(state=state, limit=MOST, by_priority=state not in ACTIVE)
                for state in OPEN_STATES
            ]
            pages = [[job for job in newest if job["state"] in TERMINAL], *opened]
            is_cut = any(len(page) == MOST for page in opened)
        now = self._now()
        self._jobs = {
            job["id"]: job
            for page in pages
            for job in completed(page)
            if job["state"] not in TERMINAL or now - (job["ended"] or 0.0) < ENDED_SECONDS
        }
        self._is_cut = is_cut
        self._has_changed = False

    def _list_running(self) -> None:
        running = {n: job for n, job in self._jobs.items() if job["state"] in ACTIVE}
        found: dict[int, Job] = {}
        for state in sorted({str(job["state"]) for job in running.values()}):
            page = completed(self._client.jobs(state=state, limit=MOST))
            found |= {job["id"]: job for job in page}
        self._has_changed = self._has_changed or found.keys() != running.keys()
        self._jobs |= found


def completed(jobs: Iterable[Mapping[str, Any]]) -> list[Job]:
    """Return the jobs with all fields that this version needs. A missing field gets its value from
    `BLANK`.
    """
    return [{**BLANK, **job} for job in jobs]


def leased_jobs(leases: Iterable[Mapping[str, Any]], jobs: Iterable[Job]) -> dict[str, Job]:
    """Return the job that each GPU is leased to, keyed by the UUID of the GPU."""
    known = {job["id"]: job for job in jobs}
    found = {}
    for lease in leases:
        number = lease["job_id"]
        unknown: Job = {**BLANK, "id": number, "uid": lease.get("uid", -1)}
        found[str(lease["gpu_uuid"])] = known.get(number, unknown)
    return found
