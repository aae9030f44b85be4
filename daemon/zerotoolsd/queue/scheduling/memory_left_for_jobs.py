"""Computes how much memory of each GPU and of the host is left for jobs that declare their memory.

A job that declares `memory.per_gpu` leases this amount plus the CUDA context on each of its GPUs.
The sum of the leases, the use by other programs and the driver's reserve never exceeds the memory
of the GPU. A lease without an amount takes the whole GPU and excludes other leases.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from zerotools.sensors.snapshot import Gpu
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.resource_requests import DECLARED, Request, ResourceNeed, job_of

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class DeclaredMemory:
    """The memory that jobs use and may use, in bytes. GPU memory that jobs lease is not included.

    Attributes:
        context: the memory of a GPU that each process uses in addition to its tensors (the CUDA
            context).
        own: UUID of a GPU -> the memory that jobs of this daemon use according to the driver. On a
            GPU without an entry, jobs are assumed to use what they declared.
        host_total: the host memory that all jobs together may declare (None: no limit).
        host_used: the host memory of all running jobs together, as declared or expected.
        host_first: the position of the first job that waited for host memory at the last pass. No
            job behind it in the queue gets host memory.
        host_free: the free memory of the host minus the expected growth of running jobs (None:
            unknown).
    """

    context: int = 0
    own: Mapping[str, int] = field(default_factory=dict)
    host_total: int | None = None
    host_used: int = 0
    host_first: int | None = None
    host_free: int | None = None

    def share(self, declared: int) -> int:
        """Return the memory of a GPU, in bytes, that a process uses: the `declared` bytes and its
        CUDA context.
        """
        return declared + self.context


@dataclass(frozen=True)
class HostMemoryNow:
    """The current memory of the host in bytes: the memory that programs can still use, and the
    memory that each running job holds.
    """

    available: int
    held: Mapping[int, int] = field(default_factory=dict)

    def left_after_growth(self, expected: Mapping[int, int]) -> int:
        """Return the host memory, in bytes, that is left after every running job has grown to its
        expected use.

        `expected` maps the number of a job to its expected use.
        """
        coming = sum(max(0, size - self.held.get(job, 0)) for job, size in expected.items())
        return self.available - coming


NOTHING_DECLARED = DeclaredMemory()


def free_shared_memory(
    gpus: Sequence[Gpu],
    leases: Sequence[Lease],
    occupied: Mapping[int, str],
    memory: DeclaredMemory,
    closed: Container[str] = (),
) -> dict[int, int]:
    """Return the free memory of each GPU that jobs may share: GPU index -> bytes.

    A GPU may be shared if each of its leases has a number of bytes, no process of an ended job uses
    it, and its UUID is not in `closed`. A GPU in `occupied` must also have a lease.
    """
    by_uuid: dict[str, list[Lease]] = {}
    for lease in leases:
        by_uuid.setdefault(lease.gpu_uuid, []).append(lease)
    found = {}
    for gpu in gpus:
        on_it = by_uuid.get(gpu.uuid or "", [])
        if (gpu.index in occupied and not on_it) or gpu.uuid in closed or not is_usable(gpu):
            continue
        if gpu.excluded:
            continue
        if any(lease.bytes is None or lease.held_by is not None for lease in on_it):
            continue
        free = shared_free_bytes(gpu, on_it, memory)
        if free is not None:
            found[gpu.index] = free
    return found


def is_usable(gpu: Gpu) -> bool:
    """Return whether the GPU works and reports its memory. Only such a GPU can be shared."""
    return gpu.error is None and gpu.mig_instances is None and gpu.memory_used_bytes is not None


def shared_free_bytes(gpu: Gpu, leases: Sequence[Lease], memory: DeclaredMemory) -> int | None:
    """Return the free memory of `gpu` in bytes; None if unknown. `leases` are the leases of this
    GPU; each must have a number of bytes.
    """
    if gpu.memory_total_bytes is None:
        return None
    shares = sum(memory.share(lease.bytes or 0) for lease in leases)
    used = gpu.memory_used_bytes or 0
    own = memory.own.get(gpu.uuid or "", min(used, shares))
    whole = gpu.memory_total_bytes - (gpu.memory_reserved_bytes or 0)
    return max(0, whole - max(0, used - own) - shares)


class HostMemoryPass:
    """The host memory during one scheduler pass. A job that waits for host memory reserves it."""

    def __init__(self, memory: DeclaredMemory) -> None:
        self._total = memory.host_total
        self._remaining = 0 if memory.host_total is None else memory.host_total - memory.host_used
        self._is_idle = memory.host_used == 0
        self._free, self._ours = memory.host_free, memory.host_used
        self._before = memory.host_first
        self.first: int | None = None
        """Position of the first job that waits for host memory; None if no job does."""
        self.reasons: dict[ResourceNeed, str] = {}
        """The reason why jobs wait for host memory, keyed by their need."""

    def fits(self, request: Request, order: int) -> bool:
        """Return whether the job at position `order` (`order_of`) gets the host memory that it
        needs. If not, record the reason in `reasons`.
        """
        need, wanted = request.need, request.need.host_bytes
        if not wanted or self._total is None:
            return True
        behind = self._behind(order)
        # A job that needs more than the limit was accepted when the limit was higher: it runs
        # alone.
        within = wanted <= self._remaining or self._is_idle
        is_there = self._free is None or wanted <= self._free
        if behind is None and within and is_there:
            return True
        head = f"needs {wanted / GIB:.1f} GiB of host memory ({need.host_from})"
        if behind is not None:
            self.reasons[need] = f"{head}: waits behind job {behind}"
        elif not within:
            self.first = order
            why = (
                f"{max(0, self._remaining) / GIB:.1f} of {self._total / GIB:.1f} GiB are left of "
                "the memory that"
            )
            self.reasons[need] = f"{head}: {why} jobs may declare{_advice(need)}"
        else:
            # Memory that our jobs do not hold may never become free, so none is reserved meanwhile.
            free = self._free or 0
            self.first = order if wanted <= free + self._ours else None
            why = f"{max(0, free) / GIB:.1f} GiB are free that running jobs will not need"
            self.reasons[need] = f"{head}: {why}{_advice(need)}"
        return False

    def _behind(self, order: int) -> int | None:
        first = self._before if self.first is None else self.first
        return job_of(first) if first is not None and first < order else None

    def subtract(self, need: ResourceNeed) -> None:
        """Subtract the host memory of a job that is started."""
        self._remaining -= need.host_bytes
        self._ours += need.host_bytes
        self._free = None if self._free is None else self._free - need.host_bytes
        self._is_idle = self._is_idle and not need.host_bytes


def _advice(need: ResourceNeed) -> str:
    if need.host_from == DECLARED:
        return ""
    less = f"{need.host_advice} would need less; " if need.host_advice else ""
    return f"; {less}to declare another value, set memory.host"
