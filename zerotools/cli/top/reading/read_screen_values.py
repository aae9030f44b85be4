"""Reads all values for one refresh of the screen: the machine, the jobs, details of one job."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.job_views.machine_screen import daemon_trouble, snapshot_of
from zerotools.cli.output.text_charts import means_over_time
from zerotools.cli.top.reading.cached_value import CachedValue
from zerotools.cli.top.reading.disk_reader import DiskReader, DiskSpace
from zerotools.cli.top.reading.gpu_holders import (
    WATCHED_SECONDS,
    GpuHolder,
    GpuHolders,
    GpuShare,
    Leases,
    memory_by_owner,
)
from zerotools.cli.top.reading.job_details import (
    JobDetails,
    JobDetailsReader,
    LogFollower,
    LogLines,
)
from zerotools.cli.top.reading.job_list import JobList, ListedJobs, leased_jobs
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_address import machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import TERMINAL
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource

PAST_SECONDS, PAST_POINTS, PAST_CELLS = 3600, 120, 60
OFTEN_SECONDS = 10.0
MOST_DIRECTORIES = 32

PastSeries = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class ScreenData:
    """The values that one screen shows.

    Attributes:
        trouble: the reason why the daemon does not answer; empty if it answers.
        jobs: the jobs; if the daemon does not answer, the jobs that it listed last.
        jobs_age_seconds: the age of `jobs` in seconds.
        holders: index of a GPU -> the processes on it.
        shares: index of a GPU -> the owners of its memory.
        chosen: the details of the job under the cursor.
    """

    snapshot: Snapshot
    machine: str = ""
    trouble: str = ""
    jobs: tuple[Job, ...] = ()
    jobs_age_seconds: float = 0.0
    is_cut: bool = False
    leases: Leases = field(default_factory=dict)
    holders: Mapping[int, tuple[GpuHolder, ...]] = field(default_factory=dict)
    shares: Mapping[int, tuple[GpuShare, ...]] = field(default_factory=dict)
    disks: tuple[DiskSpace, ...] = ()
    chosen: JobDetails | None = None
    past: PastSeries = field(default_factory=dict)
    """The averages of each series over the last hour if the daemon has them, otherwise the values
    of the last minutes.
    """
    is_hour: bool = False


class ScreenReader:
    """Reads the values of the screen repeatedly, by one thread at a time. `clock` returns monotonic
    seconds.
    """

    def __init__(
        self,
        source: SnapshotSource,
        client: DaemonClient,
        places: DiskReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        elsewhere = machine_behind(client.socket)
        self._machine = socket.gethostname() if elsewhere is None else elsewhere.host
        self._is_here = elsewhere is None
        self._source = source
        self._client = client
        self._disk_reader = places if self._is_here else None
        self._clock = clock
        self._list = JobList(client, clock)
        self._jobs, self._listed = ListedJobs(), clock()
        self._leases: Sequence[Mapping[str, Any]] = ()
        self._snapshot: Snapshot | None = None
        self._chosen: JobDetails | None = None
        self._log: tuple[tuple[int, int], LogFollower] | None = None
        self._holders = GpuHolders(CachedValue(WATCHED_SECONDS, clock), is_here=self._is_here)
        self._details = JobDetailsReader(client, self._disk_reader, clock)
        self._samples = RecentSamples()
        self._hour: CachedValue[PastSeries] = CachedValue(OFTEN_SECONDS, clock)
        self._disks: CachedValue[tuple[DiskSpace, ...]] = CachedValue(OFTEN_SECONDS, clock)

    def read(self, chosen: int | None) -> ScreenData:
        """Read all values for a screen, with the details of the job `chosen`. If the daemon does
        not answer, return its last values and the reason.

        Raises:
            ZerotoolsError: the daemon is on another machine and has never answered.
        """
        own = self._source.read() if self._is_here else None
        trouble = ""
        try:
            self._jobs, self._listed = self._list.read(), self._clock()
            machine = self._client.machine()
            self._leases = machine["leases"]
            self._snapshot = snapshot_of(own, machine)
        except ZerotoolsError as error:
            trouble = daemon_trouble(error, self._client)
            self._snapshot = own or self._snapshot
            if self._snapshot is None:
                raise
        self._samples.add(self._snapshot)
        return self._drawn_of(self._snapshot, trouble, chosen)

    def _drawn_of(self, snapshot: Snapshot, trouble: str, chosen: int | None) -> ScreenData:
        jobs = self._jobs.jobs
        leases = leased_jobs(self._leases, jobs)
        holders = self._holders.read(snapshot.gpus, jobs, leases)
        job = next((job for job in jobs if job["id"] == chosen), None)
        if not trouble:
            self._chosen = None if job is None else self._details.read(job)
        hour = {} if trouble else self._hour.get(self._last_hour)
        return ScreenData(
            snapshot=snapshot,
            machine=self._machine,
            trouble=trouble,
            jobs=jobs,
            jobs_age_seconds=self._clock() - self._listed,
            is_cut=self._jobs.is_cut,
            leases=leases,
            holders=holders,
            shares={
                gpu.index: memory_by_owner(gpu, holders.get(gpu.index, ())) for gpu in snapshot.gpus
            },
            disks=self._disks.get(lambda: self._read_disks(jobs), _directories(jobs)),
            chosen=self._chosen if job is not None else None,
            past={**self._samples.series(), **hour},
            is_hour=bool(hour),
        )

    def _last_hour(self) -> PastSeries:
        try:
            tree = self._client.history(PAST_SECONDS, PAST_POINTS)
        except ZerotoolsError:  # an older daemon, or it has gone meanwhile
            return {}
        if not tree["times"]:
            return {}
        times, step = tree["times"], tree["step_seconds"]
        return {
            name: means_over_time(times, each["mean"], PAST_SECONDS, PAST_CELLS, step)
            for name, each in tree["series"].items()
            if name.startswith(("gpu.", "host."))
        }

    def _read_disks(self, jobs: Sequence[Job]) -> tuple[DiskSpace, ...]:
        """Return the file systems of the jobs' output directories. The file system with the least
        free space comes first.
        """
        places = self._disk_reader
        if places is None:
            return ()
        found = {(disk := places.disk(path)).at: disk for path in _directories(jobs)}
        return tuple(sorted(found.values(), key=_share_free))

    def log(self, job: Job, rank: int) -> LogLines:
        """Read the new part of the log of a job's rank, and return its last lines. Raises
        ZerotoolsError.
        """
        if self._log is None or self._log[0] != (job["id"], rank):
            self._log = (job["id"], rank), LogFollower(self._client, job, rank)
        return self._log[1].read()

    def close(self) -> None:
        """End the child processes that read disks."""
        if self._disk_reader is not None:
            self._disk_reader.close()


def _directories(jobs: Sequence[Job]) -> list[str]:
    """Return the output directories of unfinished jobs, and then the output directories of the
    newest finished jobs.
    """
    ordered = sorted(jobs, key=lambda job: (job["state"] in TERMINAL, -job["id"]))
    named = dict.fromkeys(str(job["output_dir"]) for job in ordered if job["output_dir"])
    return list(named)[:MOST_DIRECTORIES]


def _share_free(disk: DiskSpace) -> float:
    if disk.free_bytes is None or not disk.total_bytes:
        return -1.0
    return disk.free_bytes / disk.total_bytes


SAMPLES = 60


class RecentSamples:
    """Values of the last minutes, collected while the screen was open. They are drawn as sparklines
    if no daemon keeps a history.

    The series have the same names as the daemon's series (`GET /v1/history`), and two additional
    series are about the network.
    """

    def __init__(self, most: int = SAMPLES) -> None:
        self._most = most
        self._series: dict[str, deque[float | None]] = {}
        self._count = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add the values of a snapshot to all series. A missing value is a gap."""
        self._count = min(self._count + 1, self._most)
        now = dict(_values(snapshot))
        for name in now.keys() - self._series.keys():
            self._series[name] = deque([None] * (self._count - 1), self._most)
        for name in list(self._series):
            series = self._series[name]
            series.append(now.get(name))
            if all(value is None for value in series):
                del self._series[name]

    def series(self) -> dict[str, tuple[float | None, ...]]:
        """Return the values of each series keyed by name, the oldest first. None is a missing
        value.
        """
        missing = (None,) * (self._most - self._count)
        return {name: (*missing, *values) for name, values in self._series.items()}


def _values(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    host = snapshot.host
    values: list[tuple[str, float | None]] = [
        ("host.memory_used_bytes", host.memory_used_bytes),
        ("host.cpu_percent", host.cpu_percent),
        ("host.network_received_bytes_per_second", host.network_received_bytes_per_second),
        ("host.network_sent_bytes_per_second", host.network_sent_bytes_per_second),
    ]
    for gpu in (gpu for gpu in snapshot.gpus if gpu.uuid):
        values.append((f"gpu.{gpu.uuid}.memory_used_bytes", gpu.memory_used_bytes))
        values.append((f"gpu.{gpu.uuid}.utilization_percent", gpu.utilization_percent))
    return ((name, float(value)) for name, value in values if value is not None)
