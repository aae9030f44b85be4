"""Which waiting jobs start now, on which GPUs, and why the others wait. Pure.

First come, first served, per kind: what a waiting job could use is kept for it, so that no later
job overtakes it, but a later job that needs something else does not wait for it.

Two things bound what is kept. A job for which it is not enough that our own jobs end (a stranger
has a GPU, another is fenced) keeps nothing: nobody knows when it can start. As soon as that has
passed, it keeps what is free, so that it waits for the jobs that run then, and for no later ones.
And what is kept is lent to a later job that ends before the waiting one can start anyway, by the
time limits of both. Example: of 4 GPUs one runs a job for 3 more hours, and a job of 4 GPUs waits;
a job of one GPU with `time_limit = "2h"` starts, one without a limit waits behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from zerotools.sensors.snapshot import Gpu, Snapshot
from zerotoolsd.config import LimitsConfig
from zerotoolsd.queue.rows import Lease

GIB = 2**30
_MAX_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class CapabilityNeed:
    """The least compute capability of GPUs that will do, what needs it, and what to set instead."""

    least: tuple[int, int]
    what: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a queued job needs: `gpus` (a number, or a list of indices and UUIDs), or CPU ranks.

    `lasts` is how many seconds it holds them at most; None: nobody knows.
    """

    job_id: int
    world_size: int
    gpus: int | tuple[int | str, ...] | None
    capability: CapabilityNeed | None = None
    lasts: float | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start this job, on these GPUs."""

    job_id: int
    gpu_uuids: tuple[str, ...] = ()


@dataclass(kw_only=True)
class TickDecisions:
    """What one tick decided; `waits` has one sentence for every job that does not start."""

    starts: list[Start] = field(default_factory=list)
    waits: dict[int, str] = field(default_factory=dict)


def tick(
    requests: Sequence[Request],
    *,
    now: float,
    snapshot: Snapshot | None,
    leases: Sequence[Lease],
    cpu_ranks_used: int,
    limits: LimitsConfig,
    ends: Mapping[int, float] = MappingProxyType({}),
) -> TickDecisions:
    """Decide over `requests`, the oldest first. Times are seconds since the epoch.

    `ends` says when jobs that hold leases end at the latest, by job id, of those that have a limit.
    """
    decisions = TickDecisions()
    _give_cpus([r for r in requests if r.gpus is None], cpu_ranks_used, limits, decisions)
    wants_gpus = [r for r in requests if r.gpus is not None]
    if not wants_gpus:
        return decisions
    blind = _blindness(snapshot, now, limits)
    if blind is not None or snapshot is None:
        decisions.waits |= {r.job_id: f"waits for the GPUs to be seen: {blind}" for r in wants_gpus}
        return decisions
    floor = GpuFloor(snapshot.gpus, _occupied(snapshot.gpus, leases, limits), now)
    for lease in leases:
        if lease.held_by is None:
            floor.runs_until(lease.gpu_uuid, ends.get(lease.job_id))
    _give_gpus(wants_gpus, floor, decisions)
    return decisions


def _give_cpus(
    requests: Sequence[Request], used: int, limits: LimitsConfig, decisions: TickDecisions
) -> None:
    waiting_before: int | None = None
    for request in requests:
        need = request.world_size
        if waiting_before is not None:
            decisions.waits[request.job_id] = (
                f"needs {_count(need, 'CPU rank')}: waits behind job {waiting_before}"
            )
        elif used + need <= limits.cpu_ranks or (used == 0 < limits.cpu_ranks):
            # More than the limit was taken while that was higher: it runs alone.
            used += need
            decisions.starts.append(Start(job_id=request.job_id))
        else:
            waiting_before = request.job_id
            decisions.waits[request.job_id] = (
                f"needs {_count(need, 'CPU rank')}: {used} of limits.cpu_ranks = "
                f"{limits.cpu_ranks} are in use"
            )


def _blindness(snapshot: Snapshot | None, now: float, limits: LimitsConfig) -> str | None:
    """Why the GPUs cannot be relied on."""
    if snapshot is None:
        return "no snapshot was taken yet"
    if snapshot.gpus_error is not None:
        return snapshot.gpus_error
    age = now - snapshot.taken_at + (snapshot.gpus_age_seconds or 0.0)
    if age > limits.snapshot_age_seconds:
        return f"they were last seen {age:.0f} s ago"
    return None


def _occupied(gpus: Sequence[Gpu], leases: Sequence[Lease], limits: LimitsConfig) -> dict[int, str]:
    """Why a GPU cannot be given away, by index; the others are free."""
    by_uuid = {lease.gpu_uuid: lease for lease in leases}
    found: dict[int, str] = {}
    for gpu in gpus:
        lease = by_uuid.get(gpu.uuid or "")
        if gpu.mig_instances is not None or _is_shut(gpu, limits):
            found[gpu.index] = f"GPU {gpu.index}: {_never(gpu, limits)}"
        elif gpu.error is not None or gpu.uuid is None or _is_unreadable(gpu):
            found[gpu.index] = f"GPU {gpu.index} cannot be relied on ({gpu.error or 'unreadable'})"
        elif lease is not None and lease.held_by is not None:
            found[gpu.index] = (
                f"GPU {gpu.index} is held by {lease.held_by}, which outlived job {lease.job_id}"
            )
        elif lease is not None:
            found[gpu.index] = f"GPU {gpu.index} is held by job {lease.job_id}"
        elif (gpu.memory_used_bytes or 0) > limits.foreign_memory_bytes:
            found[gpu.index] = _foreign(gpu, gpu.memory_used_bytes or 0)
    return found


def _is_shut(gpu: Gpu, limits: LimitsConfig) -> bool:
    return gpu.unmeasured is not None and not limits.use_unmeasured_gpus


def _is_unreadable(gpu: Gpu) -> bool:
    return gpu.memory_used_bytes is None and gpu.unmeasured is None


def _never(gpu: Gpu, limits: LimitsConfig) -> str | None:
    """Why no job will ever start on the GPU as things are; None: one may."""
    if gpu.mig_instances is not None:
        return gpu.error or "it is divided into MIG instances, on which zerotools does not train"
    if _is_shut(gpu, limits):
        return (
            f"{gpu.unmeasured}, so nothing shows whether others use it; to use it anyway, "
            "set limits.use_unmeasured_gpus = true in the daemon's configuration"
        )
    return None


def _incapable(gpu: Gpu, need: CapabilityNeed | None) -> str | None:
    """Why the GPU cannot compute as the job wants; None: it can, or its capability is not known."""
    found = gpu.compute_capability
    if need is None or found is None or found >= need.least:
        return None
    return (
        f"{gpu.name or 'it'} has compute capability {_dotted(found)}, and {need.what} needs "
        f"{_dotted(need.least)}"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _foreign(gpu: Gpu, used: int) -> str:
    total = f" of {gpu.memory_total_bytes / GIB:.1f}" if gpu.memory_total_bytes else ""
    pids = ", ".join(str(process.pid) for process in gpu.processes[:_MAX_LISTED])
    whom = f"by pid {pids}, not ours" if pids else "by processes that are not ours"
    return f"GPU {gpu.index} has {used / GIB:.1f}{total} GiB in use {whom}"


class GpuFloor:
    """The GPUs while one tick gives them away: why each is occupied, and until when."""

    def __init__(self, gpus: Sequence[Gpu], occupied: dict[int, str], now: float) -> None:
        self.gpus = gpus
        self.occupied = occupied
        self._now = now
        self._ours: dict[int, float | None] = {}
        """When our own jobs give a GPU back at the latest, by index; None: nobody knows."""
        self._kept: dict[int, float | None] = {}
        """Of GPUs that are kept for a waiting job: when that can start at the earliest."""

    def runs_until(self, uuid: str, end: float | None) -> None:
        """One of our jobs holds the GPU `uuid`, until `end` at the latest."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                self._ours[gpu.index] = end

    def free_for(self, wanted: Sequence[Gpu], request: Request) -> list[Gpu]:
        """Those of `wanted` that `request` may have now; those that are kept for others last."""
        free = [gpu for gpu in wanted if gpu.index not in self.occupied]
        return free + [gpu for gpu in wanted if self._is_lent(gpu.index, request)]

    def _is_lent(self, index: int, request: Request) -> bool:
        start = self._kept.get(index)
        return (
            start is not None and request.lasts is not None and self._now + request.lasts <= start
        )

    def give(self, gpus: Sequence[Gpu], request: Request) -> None:
        """`request` starts on `gpus`."""
        end = None if request.lasts is None else self._now + request.lasts
        for gpu in gpus:
            self._kept.pop(gpu.index, None)
            self._ours[gpu.index] = end
            self.occupied[gpu.index] = f"GPU {gpu.index} is held by job {request.job_id}"

    def keep(self, free: Sequence[Gpu], wanted: Sequence[Gpu], request: Request) -> str | None:
        """Keep the `free` GPUs for `request`, if it needs nothing else but the end of our own jobs.
        Otherwise a sentence: why nothing is kept."""
        coming = [gpu for gpu in wanted if gpu.index in self._ours and gpu not in free]
        lacking = request.world_size - len(free)
        if len(coming) < lacking:
            return "nothing is kept for it meanwhile" if free else None
        start = self._when_given_back(coming, lacking)
        for gpu in free:
            # It is given back when the job that it may be lent to ends: that is before `start`.
            self._ours.setdefault(gpu.index, None)
            self._kept[gpu.index] = start
            self.occupied[gpu.index] = f"GPU {gpu.index} is kept for job {request.job_id}"
        return None

    def _when_given_back(self, coming: Sequence[Gpu], count: int) -> float | None:
        """When `count` of these GPUs are given back at the latest."""
        ends = sorted(end for gpu in coming if (end := self._ours[gpu.index]) is not None)
        return ends[count - 1] if len(ends) >= count else None


def _give_gpus(requests: Sequence[Request], floor: GpuFloor, decisions: TickDecisions) -> None:
    for request in requests:
        wanted, missing = _wanted(request, floor.gpus)
        able = [gpu for gpu in wanted if _incapable(gpu, request.capability) is None]
        if len(able) >= request.world_size:
            # Else the job was accepted before this was looked at: it goes on as it began.
            wanted = able
        free, need = floor.free_for(wanted, request), request.world_size
        if missing is None and len(free) >= need:
            given = [gpu for gpu in wanted if gpu in free[:need]]
            uuids = tuple(gpu.uuid for gpu in given if gpu.uuid is not None)
            decisions.starts.append(Start(job_id=request.job_id, gpu_uuids=uuids))
            floor.give(given, request)
            continue
        unkept = [gpu for gpu in free if gpu.index not in floor.occupied]
        why = missing or _shortage(need, wanted, unkept, floor.occupied)
        note = None if missing else floor.keep(unkept, wanted, request)
        decisions.waits[request.job_id] = f"{why}; {note}" if note else why


def _wanted(request: Request, gpus: Sequence[Gpu]) -> tuple[list[Gpu], str | None]:
    """The GPUs that would do, in the job's order; and which of those it names is not there."""
    if not isinstance(request.gpus, tuple):
        return list(gpus), None
    chosen = []
    for name in request.gpus:
        found = [gpu for gpu in gpus if name in (gpu.index, gpu.uuid)]
        if not found and (whole := _divided(name, gpus)) is not None:
            return [], (
                f"needs GPU {name}: that is a MIG instance of GPU {whole.index}, and zerotools "
                "trains only on whole GPUs"
            )
        if not found:
            return [], f"needs GPU {name}: there is none; {_inventory(gpus)}"
        chosen += found
    if len({gpu.index for gpu in chosen}) < len(chosen):
        return [], "names one GPU by its index and by its UUID; leave one out"
    return chosen, None


def _divided(name: int | str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU of which `name` is a MIG instance."""
    for gpu in gpus:
        for instance in gpu.mig_instances or ():
            if str(name).startswith("MIG-") and instance.startswith(str(name)):
                return gpu
    return None


def _inventory(gpus: Sequence[Gpu]) -> str:
    names = ", ".join(str(gpu.index) for gpu in gpus)
    return f"this machine has GPUs {names}" if gpus else "this machine has no GPU"


def _shortage(
    need: int, wanted: Sequence[Gpu], free: Sequence[Gpu], occupied: Mapping[int, str]
) -> str:
    taken = [occupied[gpu.index] for gpu in wanted if gpu.index in occupied]
    more = f"; and {len(taken) - _MAX_LISTED} more" if len(taken) > _MAX_LISTED else ""
    listed = "; ".join(taken[:_MAX_LISTED]) + more
    head = f"needs {_count(need, 'GPU')}: {len(free)} of {len(wanted)} free"
    return f"{head}: {listed}" if listed else head


def impossible(request: Request, snapshot: Snapshot | None, limits: LimitsConfig) -> str | None:
    """Why the request can never be met on this machine; None if it may be."""
    need = request.world_size
    if request.gpus is None:
        if need <= limits.cpu_ranks:
            return None
        return (
            f"ranks = {need}: limits.cpu_ranks of this daemon is {limits.cpu_ranks} (its cores, "
            "unless its configuration sets another number); ask for fewer, or set that and "
            "restart it"
        )
    if snapshot is None:
        return None
    if snapshot.gpus_error is not None and not snapshot.gpus:
        return (
            f"gpus: the job needs {_count(need, 'GPU')} and this machine shows none: "
            f'{snapshot.gpus_error}; with device = "cpu" it runs on the CPU'
        )
    wanted, missing = _wanted(request, snapshot.gpus)
    if missing is not None:
        return f"gpus: the job {missing}"
    if need > len(snapshot.gpus):
        return f"gpus = {need}: {_inventory(snapshot.gpus)}"
    never = {gpu.index: why for gpu in wanted if (why := _never(gpu, limits)) is not None}
    others = [gpu for gpu in wanted if gpu.index not in never]
    weak = {gpu.index: why for gpu in others if (why := _incapable(gpu, request.capability))}
    never |= weak
    if need <= len(wanted) - len(never):
        return None
    named = "; ".join(f"GPU {index}: {why}" for index, why in list(never.items())[:_MAX_LISTED])
    usable = len(wanted) - len(never)
    advice = f"; {request.capability.instead}" if weak and request.capability else ""
    return (
        f"gpus: the job needs {_count(need, 'GPU')} and can use {usable} of {len(wanted)}: {named}"
        f"{advice}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
