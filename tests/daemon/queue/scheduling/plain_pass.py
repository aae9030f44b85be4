"""The scheduler's pass as it reads in one sentence: every job in its turn.

It is what `scheduler.run_pass` must come to, and takes as long as the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerotools.core.counts_and_sizes import count_text
from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.resource_requests import Request
from zerotoolsd.queue.scheduling.scheduler import Start
from zerotoolsd.queue.scheduling.suitable_gpus import occupied_gpus, shortage_text, usable_gpus

Decided = tuple[list[Start], dict[int, str]]


def plain_pass(
    requests: Sequence[Request],
    *,
    now: float,
    snapshot: Snapshot,
    leases: Sequence[Lease],
    cpu_ranks_used: int,
    limits: LimitsConfig,
    ends: Mapping[int, float],
) -> Decided:
    """What starts, in order, and what all others are told."""
    starts: list[Start] = []
    waits: dict[int, str] = {}
    _cpus([r for r in requests if r.need.gpus is None], cpu_ranks_used, limits, starts, waits)
    allocation = _Allocation(snapshot.gpus, occupied_gpus(snapshot.gpus, leases, limits), now)
    for lease in leases:
        for gpu in snapshot.gpus:
            if gpu.uuid == lease.gpu_uuid and lease.held_by is None:
                allocation.ours[gpu.index] = ends.get(lease.job_id)
    for request in requests:
        if request.need.gpus is not None:
            allocation.place(request, starts, waits)
    return starts, waits


def _cpus(
    requests: Sequence[Request],
    used: int,
    limits: LimitsConfig,
    starts: list[Start],
    waits: dict[int, str],
) -> None:
    first: int | None = None
    for request in requests:
        least = request.need.world_size
        head = f"needs {count_text(least, 'CPU rank')}"
        if first is not None:
            waits[request.job_id] = f"{head}: waits behind job {first}"
        elif used + least <= limits.cpu_ranks or (used == 0 < limits.cpu_ranks):
            sizes = [size for size in request.need.sizes if used + size <= limits.cpu_ranks]
            size = max(sizes, default=least)
            used += size
            starts.append(Start(job_id=request.job_id, size=_said(request, size)))
        else:
            first = request.job_id
            waits[first] = f"{head}: {used} of limits.cpu_ranks = {limits.cpu_ranks} are in use"


def _said(request: Request, size: int) -> int | None:
    return size if len(request.need.sizes) > 1 else None


class _Allocation:
    def __init__(self, gpus: Sequence[Gpu], taken: dict[int, str], now: float) -> None:
        self.gpus, self.taken, self.now = gpus, taken, now
        self.ours: dict[int, float | None] = {}
        self.kept: dict[int, float | None] = {}

    def place(self, request: Request, starts: list[Start], waits: dict[int, str]) -> None:
        wanted, missing = usable_gpus(request.need, self.gpus)
        need, job_id = request.need.world_size, request.job_id
        free = [gpu for gpu in wanted if gpu.index not in self.taken]
        offered = free + [gpu for gpu in wanted if self._is_lent(gpu.index, request)]
        if missing is None and len(offered) >= need:
            size = max((s for s in request.need.sizes if s <= len(offered)), default=need)
            given = [gpu for gpu in wanted if gpu in offered[:size]]
            uuids = tuple(str(gpu.uuid) for gpu in given)
            starts.append(Start(job_id=job_id, gpu_uuids=uuids, size=_said(request, size)))
            for gpu in given:
                self.kept.pop(gpu.index, None)
                self.ours[gpu.index] = None if request.lasts is None else self.now + request.lasts
                self.taken[gpu.index] = f"job {job_id}"
            return
        waits[job_id] = missing or shortage_text(need, wanted, self.taken)
        coming = [gpu for gpu in wanted if gpu.index in self.ours and gpu not in free]
        lacking = need - len(free)
        if missing is None and len(coming) < lacking:
            waits[job_id] += "; no GPU is reserved for it meanwhile" if free else ""
        elif missing is None:
            ends = sorted(e for gpu in coming if (e := self.ours[gpu.index]) is not None)
            for gpu in free:
                self.ours.setdefault(gpu.index, None)
                self.kept[gpu.index] = ends[lacking - 1] if len(ends) >= lacking else None
                self.taken[gpu.index] = f"kept for job {job_id}"

    def _is_lent(self, index: int, request: Request) -> bool:
        start, lasts = self.kept.get(index), request.lasts
        return start is not None and lasts is not None and self.now + lasts <= start
