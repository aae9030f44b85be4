"""What one refresh of the screen reads: the machine, the jobs, and of one job its details."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.cli.job_views.curves import Curves, curves_of
from zerotools.cli.job_views.describe import Job
from zerotools.cli.job_views.machine_screen import MonitorView, observe, owners_now
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE, STATES, TERMINAL
from zerotools.sensors.snapshot import Gpu
from zerotools.sensors.source import SnapshotSource

LOG_BYTES = 1 << 12
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


def look(source: SnapshotSource, client: DaemonClient, selected: int | None) -> Look:
    """Read all of it. Raises nothing: what cannot be read says so in its place."""
    view, _ = observe(source, client)
    owners = owners_now(view.jobs)
    view = replace(view, jobs=[*view.jobs, *_others(client, view.jobs)])
    shares = {
        gpu.index: shares_of(gpu, {p.pid: owners.of(p.pid) for p in gpu.processes})
        for gpu in view.snapshot.gpus
    }
    job = next((job for job in view.jobs if job["id"] == selected), None)
    return Look(view, shares, None if job is None else _details(client, job))


def _others(client: DaemonClient, active: Sequence[Job]) -> list[Job]:
    """Jobs that wait, and those that ended a short while ago, each with how."""
    known = {job["id"] for job in active}
    try:
        newest = client.jobs(limit=NEWEST)
        waiting = [job for state in WAITING for job in client.jobs(state=state, limit=NEWEST)]
    except ZerotoolsError:
        return []  # the view says that nobody answers
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
    known = all(process.memory_used_bytes is not None for process in gpu.processes)
    left = (gpu.memory_used_bytes or 0) - sum(held.values())
    if known and left > DRIVERS_OWN * max(1, len(gpu.processes)):
        shares.append(GpuShare("nobody", RESIDUE, left))
    return tuple(sorted(shares, key=lambda share: -share.held_bytes))


DRIVERS_OWN = 1 << 30
"""Memory that a driver may report as used beside what processes hold: for itself and for each
context, of which NVML counts some with no process. Less than that is nobody's residue."""


def _details(client: DaemonClient, job: Job) -> Details:
    curves = Curves()
    log: tuple[str, ...] = ()
    try:
        curves = curves_of(client, job)
        log = _tail(client, job)
    except (ZerotoolsError, OSError):
        pass  # the job's row says what the daemon says; a part that is not there stays empty
    return Details(job["id"], curves, log)


def _tail(client: DaemonClient, job: Job) -> tuple[str, ...]:
    if not job["attempt"]:
        return ()
    data: Any = client.logs(job["id"], offset=-LOG_BYTES, limit=LOG_BYTES).data
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    return tuple(line for line in text.split("\n") if line.strip())
