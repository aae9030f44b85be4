"""Finds the owners of processes that hold GPU memory, and the memory of each owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from zerotools.cli.job_views.describe_job import Job, title, watched_process
from zerotools.cli.job_views.process_owners import Owners, RankProcess, find_ranks, find_watched
from zerotools.cli.top.reading.cached_value import CachedValue
from zerotools.sensors.foreign_gpu_memory import DRIVERS_OWN_BYTES, unaccounted_bytes
from zerotools.sensors.snapshot import Gpu

JOB, STRANGER, RESIDUE = "job", "stranger", "residue"
WATCHED_SECONDS = 10.0


@dataclass(frozen=True)
class GpuHolder:
    """A process that holds memory of a GPU.

    Attributes:
        owner: the owner as text.
        kind: `job`, or `stranger` for any other process.
        held_bytes: the memory; None if unknown.
    """

    pid: int
    owner: str
    kind: str
    held_bytes: int | None


@dataclass(frozen=True)
class GpuShare:
    """The number of bytes of a GPU's memory that one owner holds.

    `kind` is `job`, `stranger` (another process) or `residue` (memory without a process).
    """

    owner: str
    kind: str
    held_bytes: int


Leases = Mapping[str, Job]
"""The job that each GPU is leased to, keyed by the UUID of the GPU."""


class GpuHolders:
    """Finds the owners of processes on GPUs. Each process is examined once.

    If the GPUs are on another machine (`is_here` is False), the owner is the job that the daemon
    has leased the GPU to.
    """

    def __init__(
        self, watched: CachedValue[dict[int, RankProcess]], *, is_here: bool = True
    ) -> None:
        self._watched = watched
        self._is_here = is_here
        self._known: dict[psutil.Process, _Identity] = {}

    def read(
        self, gpus: Iterable[Gpu], jobs: Sequence[Job], leases: Leases
    ) -> dict[int, tuple[GpuHolder, ...]]:
        """Return the processes on each GPU, keyed by the index of the GPU. The process with the
        most memory comes first.
        """
        adopted = [job["id"] for job in jobs if job["attempt"] and watched_process(job)]
        below = {}
        if adopted and self._is_here:
            below = self._watched.get(partial(_watched_ranks, jobs), adopted)
        run_dirs = {job["attempt"]["run_dir"]: job for job in jobs if job["attempt"]}
        before, self._known = self._known, {}
        found = {}
        for gpu in gpus:
            job = leases.get(gpu.uuid or "")
            holders = [
                self._holder(process.pid, process.memory_used_bytes, before, below, run_dirs, job)
                for process in gpu.processes
            ]
            found[gpu.index] = tuple(sorted(holders, key=lambda each: -(each.held_bytes or 0)))
        return found

    def _holder(
        self,
        pid: int,
        held_bytes: int | None,
        before: Mapping[psutil.Process, _Identity],
        below: Mapping[int, RankProcess],
        run_dirs: Mapping[str, Job],
        leased: Job | None,
    ) -> GpuHolder:
        if not self._is_here:
            words, kind = (f"pid {pid}", STRANGER) if leased is None else (title(leased), JOB)
            return GpuHolder(pid, words, kind, held_bytes)
        known = self._identity(pid, before)
        run_dir = below[pid].run_dir if pid in below else known.run_dir
        if run_dir is not None:
            job = run_dirs.get(run_dir)
            words = f"a job of another daemon ({run_dir})" if job is None else title(job)
            return GpuHolder(pid, words, JOB, held_bytes)
        # A rank of another user's job cannot be recognised, because only its user can read its
        # environment.
        if leased is not None and known.uid is not None and known.uid == leased["uid"]:
            return GpuHolder(pid, title(leased), JOB, held_bytes)
        return GpuHolder(pid, known.words, STRANGER, held_bytes)

    def _identity(self, pid: int, before: Mapping[psutil.Process, _Identity]) -> _Identity:
        try:
            process = psutil.Process(pid)
        except psutil.Error:
            return _Identity(None, None, Owners({}, {}).of(pid))
        known = before.get(process) or self._known.get(process) or _identify(process)
        self._known[process] = known
        return known


@dataclass(frozen=True)
class _Identity:
    run_dir: str | None
    uid: int | None
    words: str


def _identify(process: psutil.Process) -> _Identity:
    ranks = find_ranks([process])
    run_dir = ranks[process.pid].run_dir if process.pid in ranks else None
    try:
        uid: int | None = process.uids().real
    except psutil.Error:
        uid = None
    return _Identity(run_dir, uid, Owners({}, {}).of(process.pid))


def _watched_ranks(jobs: Sequence[Job]) -> dict[int, RankProcess]:
    found: dict[int, RankProcess] = {}
    for job in jobs:
        if job["attempt"] and (watched := watched_process(job)):
            found |= find_watched(job["attempt"]["run_dir"], watched)
    return found


def memory_by_owner(gpu: Gpu, holders: Sequence[GpuHolder]) -> tuple[GpuShare, ...]:
    """Return the memory of a GPU that each owner holds. The owner with the most memory comes first.

    Memory that no process holds is counted as residue, except for the amount that the driver itself
    needs.
    """
    held: dict[tuple[str, str], int] = {}
    for each in holders:
        key = (each.owner, each.kind)
        held[key] = held.get(key, 0) + (each.held_bytes or 0)
    shares = [GpuShare(owner, kind, size) for (owner, kind), size in held.items()]
    left = unaccounted_bytes(gpu)
    if left is not None and left > DRIVERS_OWN_BYTES * max(1, len(holders)):
        shares.append(GpuShare("nobody", RESIDUE, left))
    return tuple(sorted(shares, key=lambda share: -share.held_bytes))
