"""The resources that a job requests: GPUs, memory, time and priority, from its job file."""

from __future__ import annotations

import os
from typing import Any

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.jobs.priority_range import MOST_PRIORITY
from zerotools.sensors.foreign_gpu_memory import drawn_bytes
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue.expected_memory import NOTHING_EXPECTED, ExpectedMemory
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.scheduling.memory_left_for_jobs import (
    DeclaredMemory,
)
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed, capability_need
from zerotoolsd.queue.scheduling.suitable_gpus import usable_gpus

WATCHED_PRIORITY = 2 * MOST_PRIORITY
"""Priority of a job that only watches a process which a user started by hand. Such a job uses no
resources and does not wait for other jobs.
"""


def request_of(
    job: JobRow, grace_seconds: float = 0.0, expected: ExpectedMemory = NOTHING_EXPECTED
) -> Request:
    """Return the resources that `job` requests from the scheduler.

    `grace_seconds` is the time that the job has to save after its time limit is reached. `expected`
    is the memory that the job probably needs.
    """
    spec = job.spec
    limit = None if spec.time_limit is None else seconds_of(spec.time_limit) + grace_seconds
    first = spec.script.process is not None  # it runs already
    priority = WATCHED_PRIORITY if first else job.priority
    need = need_of(spec, expected)
    return Request(job_id=job.id, need=need, lasts=limit, priority=priority, uid=job.uid)


def need_of(spec: JobSpec, expected: ExpectedMemory = NOTHING_EXPECTED) -> ResourceNeed:
    """Return the resources that a job needs. If the job file declares no memory, the memory in
    `expected` is used.
    """
    if spec.script.process is not None or spec.backend == SLURM:
        return ResourceNeed(world_size=0, gpus=None)
    sizes = spec.sizes if spec.size_range is not None else ()
    host: dict[str, Any] = {"host_bytes": host_bytes_of(spec, expected)}
    if spec.memory.host is None and expected.host_bytes:
        host |= {"host_from": expected.source, "host_advice": expected.less_host}
    if spec.device == "cpu":
        return ResourceNeed(world_size=spec.world_size, gpus=None, sizes=sizes, **host)
    gpus = spec.gpus if isinstance(spec.gpus, tuple) else spec.world_size
    return ResourceNeed(
        world_size=spec.world_size,
        gpus=gpus,
        capability=capability_need(spec),
        gpu_bytes=None if expected.alone else spec.memory.per_gpu_bytes,
        least_gpu_bytes=expected.gpu_bytes if spec.memory.per_gpu is None else 0,
        sizes=sizes,
        **host,
    )


def host_bytes_of(spec: JobSpec, expected: ExpectedMemory) -> int:
    """Return the host memory that the job needs, in bytes: the declared memory, or the expected
    memory if none is declared.
    """
    return spec.memory.host_bytes if spec.memory.host is not None else expected.host_bytes


def memory_of_machine(config: Config) -> DeclaredMemory:
    """Return the memory of this machine that can be divided among jobs."""
    set_bytes = config.limits.host_memory
    total = int(memory_of_host() * HOST_PART) if set_bytes is None else bytes_of(set_bytes)
    return DeclaredMemory(context=bytes_of(config.gpus.context_memory), host_total=total)


def memory_of_host() -> int:
    """Return the host memory of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_memory_for(need: ResourceNeed, snapshot: Snapshot | None) -> int | None:
    """Return the memory, in bytes, that a job can expect on each of its GPUs; None if no GPU
    reports its memory.

    The job is assumed to get the GPUs with the most memory, one for each rank. The result is the
    memory of the smallest of these GPUs, without the memory that a desktop uses.
    """
    gpus = [] if snapshot is None else usable_gpus(need, snapshot.gpus)[0]
    sizes = [gpu.memory_total_bytes - drawn_bytes(gpu) for gpu in gpus if gpu.memory_total_bytes]
    return min(sorted(sizes, reverse=True)[: need.world_size], default=None)


HOST_PART = 0.9
"""Fraction of the host memory that all jobs together may declare. The rest is for the system."""
