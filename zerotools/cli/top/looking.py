"""What one refresh of the screen reads: the machine, the jobs, and of one job its details."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.cli.job_views.curves import curves_of
from zerotools.cli.job_views.describe import Job
from zerotools.cli.job_views.machine_screen import MonitorView, observe, owners_now
from zerotools.cli.output import render
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE, STATES, TERMINAL
from zerotools.jobs.step_curves import Curves
from zerotools.sensors.snapshot import Gpu
from zerotools.sensors.source import SnapshotSource
from zerotools.sensors.unaccounted import DRIVERS_OWN_BYTES, unaccounted_bytes

LOG_BYTES = 1 << 12
CURVES_SECONDS = 10.0
SPARED = 50.0
"""How much longer than a reading of curves took it is not done again: 2 % of the time."""
PAST_SECONDS, PAST_POINTS = 3600, 60
NEWEST = 200
ENDED_SECONDS = 3600.0
WAITING = [state for state in STATES if state not in (*ACTIVE, *TERMINAL)]
STRANGER, RESIDUE = "stranger", "residue"


@dataclass(frozen=True)
class GpuShare:
    """Bytes of a GPU that one owner holds; `kind` is `job`, `stranger` or `residue`."""

    owner: str
    kind: str
    held_bytes: int


@dataclass(frozen=True)
class Details:
    """Of the job that is selected: its curves and the last lines of its log."""

    job_id: int
    curves: Curves = field(default_factory=Curves)
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Look:
    """Everything that is drawn. `shares` are the owners of each GPU's memory, by index;
    `chosen` is of the job under the cursor."""

    view: MonitorView
    shares: Mapping[int, tuple[GpuShare, ...]]
    chosen: Details | None = None
    past: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Means of the last hour by series, where a daemon knows them."""


class Looking:
    """Reads again and again. The curves of a job are all that it ever reported: they are read
    anew only after `CURVES_SECONDS`, or later where that took long."""

    def __init__(
        self,
        source: SnapshotSource,
        client: DaemonClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._client = client
        self._clock = clock
        self._curves: tuple[int, Curves] | None = None
        self._curves_until = 0.0
        self._past: Mapping[str, Sequence[float | None]] = {}
        self._past_until = 0.0

    def look(self, selected: int | None) -> Look:
        """Read all of it, with the details of one job. What cannot be read says so in its place."""
        view, _ = observe(self._source, self._client)
        owners = owners_now(view.jobs)
        try:
            view = replace(view, jobs=[*view.jobs, *_others(self._client, view.jobs)])
        except ZerotoolsError as error:
            view = replace(view, daemon=view.daemon if not view.jobs else str(error))
        shares = {
            gpu.index: shares_of(gpu, {p.pid: owners.of(p.pid) for p in gpu.processes})
            for gpu in view.snapshot.gpus
        }
        job = next((job for job in view.jobs if job["id"] == selected), None)
        return Look(view, shares, None if job is None else self._details(job), self._past_hour())

    def _past_hour(self) -> Mapping[str, Sequence[float | None]]:
        if (begun := self._clock()) >= self._past_until:
            try:
                series = self._client.history(PAST_SECONDS, PAST_POINTS)["series"]
                self._past = {name: each["mean"] for name, each in series.items()}
            except ZerotoolsError:  # an older daemon, or none
                self._past = {}
            self._past_until = begun + max(CURVES_SECONDS, SPARED * (self._clock() - begun))
        return self._past

    def _details(self, job: Job) -> Details:
        try:
            return Details(job["id"], self._curves_of(job), _tail(self._client, job))
        except (ZerotoolsError, OSError) as error:
            return Details(job["id"], log=(render.clean(str(error)),))

    def _curves_of(self, job: Job) -> Curves:
        begun = self._clock()
        if self._curves is None or self._curves[0] != job["id"] or begun >= self._curves_until:
            self._curves = (job["id"], curves_of(self._client, job))
            took = self._clock() - begun
            self._curves_until = begun + max(CURVES_SECONDS, SPARED * took)
        return self._curves[1]


def _others(client: DaemonClient, active: Sequence[Job]) -> list[Job]:
    """Jobs that wait, and those that ended a short while ago, each with how. Raises DaemonError."""
    known = {job["id"] for job in active}
    newest = client.jobs(limit=NEWEST)
    waiting = [job for state in WAITING for job in client.jobs(state=state, limit=NEWEST)]
    now = time.time()
    ended = [job for job in newest if job["ended"] and now - job["ended"] < ENDED_SECONDS]
    found = {job["id"]: job for job in (*waiting, *ended) if job["id"] not in known}
    return [found[number] for number in sorted(found)]


def shares_of(gpu: Gpu, owners: Mapping[int, str]) -> tuple[GpuShare, ...]:
    """The memory of a GPU by its owners, the largest first; what no process holds is residue, as
    far as it is more than a driver keeps for itself."""
    held: dict[str, int] = {}
    for process in gpu.processes:
        owner = owners[process.pid]
        held[owner] = held.get(owner, 0) + (process.memory_used_bytes or 0)
    shares = [
        GpuShare(owner, "job" if owner.startswith(("job ", "a job ")) else STRANGER, size)
        for owner, size in held.items()
    ]
    left = unaccounted_bytes(gpu)
    if left is not None and left > DRIVERS_OWN_BYTES * max(1, len(gpu.processes)):
        shares.append(GpuShare("nobody", RESIDUE, left))
    return tuple(sorted(shares, key=lambda share: -share.held_bytes))


def _tail(client: DaemonClient, job: Job) -> tuple[str, ...]:
    if not job["attempt"]:
        return ()
    data: Any = client.logs(job["id"], offset=-LOG_BYTES, limit=LOG_BYTES).data
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    return tuple(render.clean(line) for line in text.split("\n") if line.strip())
