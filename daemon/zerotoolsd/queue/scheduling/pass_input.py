"""All input of one scheduler pass as one object.

A changed copy of this object answers the question which jobs would start if some running jobs freed
their resources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import NOTHING_DECLARED, DeclaredMemory
from zerotoolsd.queue.scheduling.suitable_gpus import NameJob, by_number
from zerotoolsd.queue.scheduling.user_quota import ANYBODY, UserUsage, without_jobs


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A running job: its leases of GPUs or its number of `cpu_ranks`, and its declared or expected
    host memory (`host_bytes`).

    Attributes:
        gpu_use: UUID of a GPU -> the memory in bytes that the job uses on it, if known.
        ran_seconds: how long the attempt of the job has been running.
        leaves: whether the job was already asked to end.
        can_shrink: whether the job is elastic and has more ranks than its smallest size, so that it
            can give up GPUs and continue at once.
    """

    job_id: int
    uid: int = 0
    priority: int = 0
    cpu_ranks: int = 0
    host_bytes: int = 0
    gpu_use: Mapping[str, int] = field(default_factory=dict)
    ran_seconds: float = 0.0
    leaves: bool = False
    can_shrink: bool = False


@dataclass(frozen=True, kw_only=True)
class PassInput:
    """The state of the machine and of its users at a scheduler pass (`scheduler.run_pass`). Times
    are in seconds since the epoch.

    Attributes:
        ends: number of a job with leases and a time limit -> the time by which it must have ended.
        passed_over: number of a job that may not start now -> the reason. This job reserves
            nothing.
        elsewhere: UUID of a GPU that belongs to another daemon -> its owner.
        closed: UUIDs of the GPUs that get no new jobs (`suitable_gpus.occupied_gpus`).
        memory: the memory of the GPUs and of the host.
        users: the current use and the limits of each user (`user_quota`).
        named: returns the text that names a job in the reasons of jobs that wait for it.
    """

    now: float
    snapshot: Snapshot | None
    leases: Sequence[Lease]
    cpu_ranks_used: int
    limits: LimitsConfig
    ends: Mapping[int, float] = field(default_factory=dict)
    passed_over: Mapping[int, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    memory: DeclaredMemory = NOTHING_DECLARED
    users: UserUsage = ANYBODY
    named: NameJob = by_number

    def without(self, jobs: Collection[RunningJob]) -> PassInput:
        """Return a copy of the input in which the running jobs `jobs` have freed their resources.

        GPU memory of other users stays in use. If a job's use of a GPU is unknown and no other job
        leases the GPU, all of its used memory becomes free.
        """
        gone = {job.job_id: job for job in jobs}
        # A job does not free a GPU that is held by a process which survived the job.
        theirs = [x for x in self.leases if x.job_id in gone and x.held_by is None]
        left = [x for x in self.leases if x not in theirs]
        freed = self._freed(theirs, left, gone)
        own = {uuid: max(0, used - freed.get(uuid, 0)) for uuid, used in self.memory.own.items()}
        host_used = self.memory.host_used - sum(job.host_bytes for job in jobs)
        snapshot, free = self.snapshot, self.memory.host_free
        if snapshot is not None:
            snapshot = replace(snapshot, gpus=tuple(_emptied(x, freed) for x in snapshot.gpus))
        return replace(
            self,
            snapshot=snapshot,
            leases=left,
            cpu_ranks_used=self.cpu_ranks_used - sum(job.cpu_ranks for job in jobs),
            ends={job_id: end for job_id, end in self.ends.items() if job_id not in gone},
            memory=replace(
                self.memory,
                own=own,
                host_used=max(0, host_used),
                host_free=None if free is None else free + sum(job.host_bytes for job in jobs),
            ),
            users=without_jobs(
                self.users,
                [
                    (job.uid, sum(x.job_id == job.job_id for x in theirs), job.cpu_ranks)
                    for job in jobs
                ],
            ),
        )

    def _freed(
        self, theirs: Sequence[Lease], left: Sequence[Lease], gone: Mapping[int, RunningJob]
    ) -> dict[str, int]:
        """Return how much memory the jobs `gone` free on each GPU: UUID -> bytes."""
        shared = {lease.gpu_uuid for lease in left}
        freed: dict[str, int] = {}
        for lease in theirs:
            uuid = lease.gpu_uuid
            known = gone[lease.job_id].gpu_use.get(uuid)
            if known is None and uuid in shared:
                known = self.memory.share(lease.bytes or 0)
            # A whole GPU with memory of unknown owners: all of it.
            freed[uuid] = freed.get(uuid, 0) + (2**63 if known is None else known)
        return freed


def _emptied(gpu: Gpu, freed: Mapping[str, int]) -> Gpu:
    if gpu.memory_used_bytes is None or gpu.uuid is None or gpu.uuid not in freed:
        return gpu
    return replace(gpu, memory_used_bytes=max(0, gpu.memory_used_bytes - freed[gpu.uuid]))
